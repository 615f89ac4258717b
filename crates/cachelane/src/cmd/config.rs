//! `cachelane config`: what `cachelane up` would read.

use std::time::Duration;

use bpf::ExpressionError;
use serde_json::json;

use crate::args::SourceArgs;
use crate::config::{Loaded, Trouble, default_file, dump, dump_json, origin, schema};
use crate::exit::Exit;
use crate::out;
use crate::packets::expression;
use crate::terminal::clean;

/// Check and show the configuration of `cachelane up`
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
Without -c, these files are laid over each other, key by key: /usr/lib/cachelane/*.toml, \
/etc/cachelane/config.toml, /etc/cachelane/conf.d/*.toml.

Exit codes: 0: all is well; 2: something is wrong in the configuration.

Examples:
  cachelane config check
  cachelane config check -c proxy.toml
  cachelane config dump --set relay.web.engine=copy
  cachelane config default > /etc/cachelane/config.toml
  cachelane config schema > cachelane.schema.json")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Say all that is wrong in it, with line and column; nothing is started
    Check {
        #[command(flatten)]
        sources: SourceArgs,
        /// Print JSON instead of text
        #[arg(long)]
        json: bool,
    },
    /// Print what is in force once all files are laid over each other, and where each value was set
    Dump {
        #[command(flatten)]
        sources: SourceArgs,
        /// Print JSON instead of TOML
        #[arg(long)]
        json: bool,
    },
    /// Print a configuration to begin with: all keys, commented out, with their meaning and defaults
    Default,
    /// Print a JSON schema of a configuration, for editors
    Schema,
    /// Compile a filter expression, and print what is wrong with it
    #[command(hide = true)]
    Filter {
        #[arg(value_name = "EXPRESSION")]
        text: String,
    },
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    match &args.what {
        What::Check { sources, json } => check(&sources.sources().load(), *json),
        What::Dump { sources, json } => {
            let loaded = sources.sources().load();
            loaded.troubles.iter().for_each(|trouble| out::complain(&trouble.to_string()));
            if *json {
                out::lines([json!({"schema": 1, "config": dump_json(&loaded.tree)})])?;
            } else {
                out::print(&dump(&loaded.tree))?;
            }
            Ok(if loaded.troubles.is_empty() { Exit::Ok } else { Exit::Usage })
        }
        What::Default => out::print(&default_file()).map(|()| Exit::Ok),
        What::Schema => out::print(&format!("{:#}\n", schema())).map(|()| Exit::Ok),
        What::Filter { text } => filter(text),
    }
}

fn check(loaded: &Loaded, json: bool) -> anyhow::Result<Exit> {
    let Loaded { config, texts, troubles, unchecked, .. } = loaded;
    let exit = if troubles.is_empty() { Exit::Ok } else { Exit::Usage };
    let files: Vec<_> = texts.files().map(|file| file.display().to_string()).collect();
    if json {
        let said = |all: &[Trouble]| {
            let one = |one: &Trouble| json!({"at": one.origin.as_ref().map(origin), "message": one.message});
            all.iter().map(one).collect::<Vec<_>>()
        };
        let members: Vec<_> = config.members.iter().map(|member| &member.name).collect();
        out::lines([json!({
            "schema": 1, "files": files, "members": members, "errors": said(troubles),
            "unchecked": said(unchecked),
        })])?;
        return Ok(exit);
    }
    unchecked.iter().for_each(|one| out::complain(&one.to_string()));
    if troubles.is_empty() {
        let names: Vec<_> = config.members.iter().map(|member| member.name.as_str()).collect();
        let names = if names.is_empty() { "nothing to run".into() } else { names.join(", ") };
        out::lines([clean(&format!("{}: {names}", files.join(", ")))])?;
    } else {
        // As compilers say it, for editors to jump there.
        out::lines(troubles.iter().map(|trouble| clean(&trouble.to_string())))?;
    }
    Ok(exit)
}

/// Compiles a filter expression for one who reads a configuration, and ends this process if that takes long.
fn filter(text: &str) -> anyhow::Result<Exit> {
    /// Should that one be gone.
    const LIMIT: Duration = Duration::from_secs(30);
    let Err(error) = expression::compile_within(text, LIMIT) else { return Ok(Exit::Ok) };
    let (said, exit) = match error {
        ExpressionError::Wrong(_) => (expression::wrong(text, &error), Exit::Usage),
        _ => (error.to_string(), Exit::HostCannot),
    };
    out::lines([said])?;
    Ok(exit)
}

//! `cachelane man`: the manual pages.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::Cli;
use crate::exit::Exit;

/// Write the manual pages, one for each subcommand
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Directory to write them to; created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<Exit> {
    fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir))
        .with_context(|| format!("cannot write manual pages into {}", args.dir.display()))?;
    Ok(Exit::Ok)
}

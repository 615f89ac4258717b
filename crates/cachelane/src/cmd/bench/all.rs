//! `cachelane bench all`: every experiment, into one file.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::{PossibleValue, PossibleValuesParser};
use measure::bench::all::{self, All};
use measure::bench::bundle::Bundle;
use measure::bench::{Stop, list};
use tempfile::{Builder, NamedTempFile};

use super::Extent;
use crate::exit::{Exit, usage};
use crate::{out, terminal};

/// Run all experiments, one after the other, and keep what they find in one file
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
The file describes the machine by its CPUs, lanes, memory and kernel. It has no host name, no \
addresses, no serial numbers and no names of users; what tells machines apart is a hash of \
/etc/machine-id. It is written after each experiment, so that a machine that dies loses one. \
`cachelane bench results` makes a page of such files.

An experiment that fails does not end the others. Exit codes: 0: all ran to their end; else as with \
the first that failed.")]
pub(super) struct Args {
    /// Print JSON instead of tables: what --bundle writes
    #[arg(long)]
    json: bool,
    /// Write what was found, with the machine's description, to this file
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    #[command(flatten)]
    extent: Extent,
    /// Run only these experiments, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "EXPERIMENTS", value_parser = names())]
    only: Vec<String>,
}

/// The names of experiments, as values of an argument.
fn names() -> PossibleValuesParser {
    let names = list::all().into_iter().map(|one| PossibleValue::new(one.name));
    PossibleValuesParser::new(names.collect::<Vec<_>>())
}

/// Runs the command.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<Exit> {
    let target = args.bundle.as_deref().map(Target::check).transpose()?;
    let Extent { rounds, window, seed } = args.extent;
    let rounds = rounds.map(|rounds| rounds as usize);
    let all = All { only: args.only.clone(), rounds, window, seed, quiet };
    // Why the last bundle was not written.
    let mut lost = None;
    let keep = |bundle: &Bundle| {
        let written = target.as_ref().map_or(Ok(()), |target| target.write(bundle));
        lost = written.as_ref().err().map(|error| format!("{error:#}"));
        written
    };
    let (bundle, error) = all::run(&all, args.command(), &Stop::on_signals()?, keep)?;
    out::print(&match args.json {
        true => format!("{}\n", serde_json::to_string_pretty(&bundle)?),
        false => tables(&bundle),
    })?;
    match error.or(lost.map(anyhow::Error::msg)) {
        Some(error) => Err(error),
        None => Ok(Exit::Ok),
    }
}

fn tables(bundle: &Bundle) -> String {
    let (width, colour) = (terminal::width(), terminal::colour());
    let tables = bundle.experiments.iter().map(|entry| {
        let table = entry.output.as_ref().map(|output| output.to_table(width, colour));
        let error = entry.error.as_ref().map(|error| format!("ended early: {error}\n"));
        let begun = entry.seconds.is_none().then(|| "was not begun\n".to_owned());
        let said: String = [table, error, begun].into_iter().flatten().collect();
        format!("{}:\n\n{said}", entry.name)
    });
    tables.collect::<Vec<_>>().join("\n")
}

impl Args {
    /// The command line, without names of files.
    fn command(&self) -> String {
        let Extent { rounds, window, seed } = self.extent;
        let only = (!self.only.is_empty()).then(|| format!(" --only {}", self.only.join(",")));
        let rounds = rounds.map(|rounds| format!(" --rounds {rounds}"));
        let window = window.map(|window| format!(" --window {}", in_units(window)));
        let seed = (seed != 1).then(|| format!(" --seed {seed}"));
        let options: String = [only, rounds, window, seed].into_iter().flatten().collect();
        format!("cachelane bench all{options}")
    }
}

/// A time as `--window` takes it.
fn in_units(time: Duration) -> String {
    humantime::format_duration(time).to_string().replace(' ', "")
}

/// Where the bundle goes.
struct Target {
    path: PathBuf,
    /// The folder that it is in.
    dir: PathBuf,
}

impl Target {
    /// Finds out whether a bundle can be written there, before there is one. Leaves everything as it
    /// was.
    fn check(path: &Path) -> anyhow::Result<Target> {
        let refused = || cannot_write(path);
        let path = match fs::metadata(path) {
            // It is replaced, which a device must not be.
            Ok(found) if !found.is_file() => {
                let what = if found.is_dir() { "a folder" } else { "no regular file" };
                return Err(usage(format!("{}: {what}; expected a file's name", refused())));
            }
            Ok(_) => fs::canonicalize(path).with_context(refused)?,
            Err(error) if error.kind() == ErrorKind::NotFound => path.to_owned(),
            Err(error) => return Err(error).with_context(refused),
        };
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new(".")).to_owned();
        out::check_writable(&path).with_context(refused)?;
        let target = Target { path, dir };
        target.beside().with_context(refused)?;
        Ok(target)
    }

    /// A file in the same folder, which goes when it is dropped.
    fn beside(&self) -> std::io::Result<NamedTempFile> {
        let permissions = Permissions::from_mode(0o666);
        Builder::new().prefix(".cachelane-bundle-").permissions(permissions).tempfile_in(&self.dir)
    }

    /// Writes it as a whole: whatever happens, there is this bundle or what was there before.
    fn write(&self, bundle: &Bundle) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(bundle)? + "\n";
        let replace = || -> std::io::Result<()> {
            let mut file = self.beside()?;
            file.write_all(text.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            // So that the new name is there after a crash of the machine.
            File::open(&self.dir)?.sync_all()
        };
        replace().with_context(|| cannot_write(&self.path))
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

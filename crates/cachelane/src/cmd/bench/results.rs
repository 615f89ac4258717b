//! `cachelane bench results`: a page of what bundles have.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use measure::bench::bundle::Bundle;
use measure::bench::results::markdown;

use crate::exit::{Exit, usage};
use crate::out;

/// The longest bundle that is read, in bytes. One of all experiments has less than 1 MiB.
const LONGEST: u64 = 64 << 20;

/// Print a Markdown page of what `bench all` found, a column for each machine
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Files of cachelane bench all --bundle
    #[arg(value_name = "FILE", required = true)]
    bundles: Vec<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let bundles = args.bundles.iter().map(|path| {
        let name = path.file_name().unwrap_or(path.as_os_str());
        Ok((name.to_string_lossy().into_owned(), read(path)?))
    });
    out::print(&markdown(&bundles.collect::<anyhow::Result<Vec<_>>>()?))?;
    Ok(Exit::Ok)
}

fn read(path: &Path) -> anyhow::Result<Bundle> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    let refused = |why: String| usage(format!("{}: {why}", path.display()));
    if bytes.len() as u64 > LONGEST {
        return Err(refused(format!("more than {LONGEST} bytes; expected a bundle")));
    }
    let text =
        String::from_utf8(bytes).map_err(|_| refused("not UTF-8; expected a bundle".into()))?;
    Bundle::read(&text).map_err(|error| refused(error.to_string()))
}

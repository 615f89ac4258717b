//! Printing to stdout, the one way. A reader that has gone is a quiet end; anything else that goes
//! wrong is an error that names stdout.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;

use crate::exit::Exit;

/// Prints a text as it is.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    try_print(text).map(drop)
}

/// Prints each on a line of its own.
pub(crate) fn lines(lines: impl IntoIterator<Item = impl Display>) -> anyhow::Result<()> {
    print(&lines.into_iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// What a dry run says: what would be done, and that this is all.
pub(crate) fn dry_run(would: Vec<String>) -> anyhow::Result<Exit> {
    lines(would.iter().map(String::as_str).chain(["would change nothing else on this host"]))?;
    Ok(Exit::Ok)
}

/// Prints a text as it is; whether somebody still reads it.
pub(crate) fn try_print(text: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot print to stdout"),
    }
}

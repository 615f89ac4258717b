//! Printing to stdout, the one way: that nobody reads it any more is a quiet end, anything else that
//! goes wrong is an error.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;

use crate::exit::Exit;

/// Prints a text as it is.
///
/// # Errors
/// It cannot be written; whoever reads it being gone is none.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    is_read(text).map(drop)
}

/// Prints each on a line of its own.
///
/// # Errors
/// As [`print`].
pub(crate) fn lines(lines: impl IntoIterator<Item = impl Display>) -> anyhow::Result<()> {
    print(&lines.into_iter().map(|line| format!("{line}\n")).collect::<String>())
}

/// What a dry run says: what would be done, and that this is all.
///
/// # Errors
/// As [`print`].
pub(crate) fn dry_run(would: Vec<String>) -> anyhow::Result<Exit> {
    lines(would.iter().map(String::as_str).chain(["would change nothing else on this host"]))?;
    Ok(Exit::Ok)
}

/// Prints a text as it is; whether somebody still reads it.
///
/// # Errors
/// As [`print`].
pub(crate) fn is_read(text: &str) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).context("cannot print to stdout"),
    }
}

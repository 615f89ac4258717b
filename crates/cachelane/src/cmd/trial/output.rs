//! What a trial, or several combined, print and write.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use trial::Verdict;
use trial::report::Page;

use crate::exit::Exit;
use crate::{out, terminal};

/// Whether the page can be written there, found out before there is one.
pub(super) fn check_writable(path: &Path) -> anyhow::Result<()> {
    out::check_writable(path).with_context(|| cannot_write(path))
}

/// Prints an object or, without one, a table, and writes the page. Printed first: minutes of measuring
/// are not lost to a full disk.
pub(super) fn show(page: &Page, object: Option<String>, html: Option<&Path>) -> anyhow::Result<()> {
    out::print(&object.map_or_else(|| text(page), |object| object + "\n"))?;
    let write = |path| fs::write(path, page.render()).with_context(|| cannot_write(path));
    html.map_or(Ok(()), write)
}

fn text(page: &Page) -> String {
    let width = terminal::width();
    let text = page.to_text(width, terminal::colour());
    // Tables fit; what is longer is a sentence.
    let fit = |line: &str| match line.chars().count() > width && !line.contains('\x1b') {
        true => terminal::wrap(line, width),
        false => format!("{line}\n"),
    };
    text.lines().map(fit).collect()
}

/// What verdicts by the first measure, of every arm, mean for the exit status.
pub(super) fn exit(verdicts: impl IntoIterator<Item = Verdict>) -> Exit {
    let is_clear = |verdict: Verdict| match verdict {
        Verdict::Better | Verdict::Worse | Verdict::NoDifference => true,
        Verdict::Inconclusive | Verdict::Withheld => false,
    };
    let clear: Vec<bool> = verdicts.into_iter().map(is_clear).collect();
    match !clear.is_empty() && clear.into_iter().all(|clear| clear) {
        true => Exit::Ok,
        false => Exit::Inconclusive,
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {} (choose another place with --html)", path.display())
}

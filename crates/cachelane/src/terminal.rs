//! What the terminal that people read on can show.

use std::io::IsTerminal as _;

/// Characters in a line of stdout; 80 where it is no terminal.
pub(crate) fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.map_or(80, |size| usize::from(size.ws_col)).max(40)
}

/// Whether stdout is a terminal that may be coloured.
pub(crate) fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// The command line that this process was started with, for reports.
pub(crate) fn command_line() -> String {
    let quote = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
        if word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let words = std::env::args().skip(1).map(quote);
    std::iter::once("cachelane".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

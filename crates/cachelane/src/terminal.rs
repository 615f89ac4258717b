//! What people read on a terminal: as wide as that is, and tables with aligned columns.

/// Characters in a line of stdout; 80 where it is no terminal.
pub(crate) fn width() -> usize {
    columns(std::io::stdout()).max(40)
}

/// Characters in a live line, which is on stderr; 80 where that is no terminal.
pub(crate) fn live_width() -> usize {
    // A full line would make some terminals go to the next one.
    columns(std::io::stderr()).max(21) - 1
}

fn columns(terminal: impl std::os::fd::AsFd) -> usize {
    rustix::termios::tcgetwinsize(terminal).map_or(80, |size| usize::from(size.ws_col))
}

/// Lays out `rows` under `head`, with cells that do nothing to a terminal. The last column is not
/// padded, so it may be long.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let rows = Vec::from_iter(rows.iter().map(|row| row.each_ref().map(|cell| clean(cell))));
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  "));
        let mut line = padded.collect::<String>().trim_end().to_owned();
        line.push('\n');
        line
    };
    let body = rows.iter().map(|row| line(std::array::from_fn(|column| row[column].as_str())));
    std::iter::once(line(head)).chain(body).collect()
}

/// A text without what would do things to a terminal, or have it show the characters in another order
/// than they are in: other processes and hosts have said some of it.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || turns(c) { '?' } else { c }).collect()
}

/// Whether a character says in which direction others are written (Unicode's `Bidi_Control`).
fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Breaks a text between words into lines of at most `width` characters; a longer word stays
/// whole. Lines after the first are indented.
pub(crate) fn wrap(text: &str, width: usize) -> String {
    const INDENT: &str = "  ";
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("{INDENT}{word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}

/// Whether stdout is a terminal that may be coloured.
pub(crate) fn colour() -> bool {
    use std::io::IsTerminal as _;
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// The command line that this process was started with, for reports.
pub(crate) fn command_line() -> String {
    let quote = |word: String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
        if word.chars().all(plain) { word } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words = words.map(quote);
    std::iter::once("cachelane".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_break_between_words() {
        for (width, expected) in [
            (40, "off: one thing; on: another\n"),
            (16, "off: one thing;\n  on: another\n"),
            (5, "off:\n  one\n  thing;\n  on:\n  another\n"),
        ] {
            assert_eq!(wrap("off: one thing; on: another", width), expected, "{width}");
        }
    }

    #[test]
    fn a_text_of_somebody_else_moves_nothing_on_a_terminal() {
        assert_eq!(clean("a\u{202e}b\u{2066}c\u{2069}d\u{200f}\u{61c}\u{1b}é"), "a?b?c?d???é");
        assert_eq!(clean("\u{2029}\u{202f} שלום"), "\u{2029}\u{202f} שלום");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["é".into(), "1".into()], ["long".into(), "22".into()]];
        assert_eq!(table(["a", "b"], &rows), "a     b\né     1\nlong  22\n");
        let rows = [["\u{1b}[2J".into(), "1\n".into()], ["\u{9b}".into(), "2".into()]];
        assert_eq!(table(["a", "b"], &rows), "a     b\n?[2J  1?\n?     2\n");
    }
}

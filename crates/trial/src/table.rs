//! Tables for a terminal: aligned columns, never wider than asked.

/// The least that a column is cut down to.
const NARROWEST: usize = 4;

/// What stands between two columns.
const GAP: &str = "  ";

/// Where the first column would keep less than this of its names, they get lines of their own.
const LEAST_NAME: usize = 16;

/// What the rest of a row then starts with.
const INDENT: &str = "  ";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// The colour of a cell, used only where colour was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
    Faint,
}

pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<(String, Tone)>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(columns: [(&str, Align); N]) -> Self {
        let columns = columns.map(|(name, align)| (name.to_owned(), align)).to_vec();
        Self { columns, rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [(String, Tone); N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.map(|(text, tone)| (one_line(&text), tone)).to_vec());
    }

    /// The lines of the table, each at most `width` characters and ended by a newline. The widest
    /// columns are cut first; what is cut ends in an ellipsis.
    pub(crate) fn render(&self, width: usize, colour: bool) -> String {
        self.render_in(&self.widths(width), colour)
    }

    /// As [`render`](Self::render), but only the first column, which has the names, is cut. Where
    /// too little of it would be left, the names stand above the rest of their rows.
    pub(crate) fn render_named(&self, width: usize, colour: bool) -> String {
        let mut widths = self.widths(usize::MAX);
        let rest: usize = widths[1..].iter().map(|width| GAP.len() + width).sum();
        let left = width.saturating_sub(rest);
        if left >= LEAST_NAME.min(widths[0]) {
            widths[0] = widths[0].min(left);
            return self.render_in(&widths, colour);
        }
        let rest = Table {
            columns: self.columns[1..].to_vec(),
            rows: self.rows.iter().map(|row| row[1..].to_vec()).collect(),
        };
        let rest = rest.render(width.saturating_sub(INDENT.len()), colour);
        let names = std::iter::once(self.columns[0].0.as_str())
            .chain(self.rows.iter().map(|row| row[0].0.as_str()));
        let named = names.zip(rest.lines());
        named.map(|(name, rest)| format!("{}\n{INDENT}{rest}\n", cut(name, width))).collect()
    }

    fn render_in(&self, widths: &[usize], colour: bool) -> String {
        let header: Vec<_> = self.columns.iter().map(|(n, _)| (n.clone(), Tone::Faint)).collect();
        let mut out = String::new();
        for row in std::iter::once(&header).chain(&self.rows) {
            let cells = row.iter().zip(&self.columns).zip(widths);
            let cells: Vec<String> = cells
                .map(|(((text, tone), (_, align)), &width)| {
                    cell(text, *tone, *align, width, colour)
                })
                .collect();
            out.push_str(cells.join(GAP).trim_end());
            out.push('\n');
        }
        out
    }

    fn widths(&self, limit: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|(name, _)| length(name)).collect();
        for row in &self.rows {
            for (width, (text, _)) in widths.iter_mut().zip(row) {
                *width = length(text).max(*width);
            }
        }
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > limit {
            match widths.iter_mut().max() {
                Some(widest) if *widest > NARROWEST => *widest -= 1,
                _ => break,
            }
        }
        widths
    }
}

fn cell(text: &str, tone: Tone, align: Align, width: usize, colour: bool) -> String {
    let text = cut(text, width);
    let padding = " ".repeat(width - length(&text));
    let text = match tone {
        Tone::Good if colour => format!("\x1b[32m{text}\x1b[0m"),
        Tone::Bad if colour => format!("\x1b[31m{text}\x1b[0m"),
        Tone::Faint if colour => format!("\x1b[2m{text}\x1b[0m"),
        _ => text,
    };
    match align {
        Align::Left => text + &padding,
        Align::Right => padding + &text,
    }
}

fn cut(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Names come from outside: a control character would garble the terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new([("case", Align::Left), ("rate", Align::Right)]);
        table.row([("copy".into(), Tone::Plain), ("9 MB/s".into(), Tone::Good)]);
        table.row([("a rather long name".into(), Tone::Plain), ("12 MB/s".into(), Tone::Bad)]);
        table
    }

    #[test]
    fn columns_are_aligned() {
        let expected = "case                   rate\n\
                        copy                 9 MB/s\n\
                        a rather long name  12 MB/s\n";
        assert_eq!(table().render(80, false), expected);
    }

    #[test]
    fn the_widest_column_is_cut_to_fit() {
        let expected = "case           rate\n\
                        copy         9 MB/s\n\
                        a rather…   12 MB/s\n";
        assert_eq!(table().render(19, false), expected);
    }

    #[test]
    fn names_are_cut_and_figures_never() {
        let expected = "case                  rate\n\
                        copy                9 MB/s\n\
                        a rather long na…  12 MB/s\n";
        assert_eq!(table().render_named(26, false), expected);
        let expected = "case\n     rate\ncopy\n   9 MB/s\na rather long name\n  12 MB/s\n";
        assert_eq!(table().render_named(20, false), expected);
    }

    #[test]
    fn colour_is_used_only_when_asked_for() {
        assert!(!table().render(80, false).contains('\x1b'));
        assert!(table().render(80, true).contains("\x1b[32m9 MB/s\x1b[0m"));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut table = Table::new([("case", Align::Left)]);
        table.row([("a\x1b[31m\nb".into(), Tone::Plain)]);
        assert_eq!(table.render(80, true).matches('\x1b').count(), 2, "the header's own");
        assert_eq!(table.render(80, false).lines().count(), 2);
    }
}

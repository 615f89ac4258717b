//! What is drawn with characters: bars, histories, texts cut to a width. In ASCII where the locale is
//! not UTF-8.

use std::ffi::OsString;

use ratatui::text::Span;

use crate::terminal::clean;

/// Which characters the terminal shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    levels: &'static [char],
    full: char,
    cut: char,
    is_ascii: bool,
}

impl Marks {
    pub(super) const UTF8: Marks = Marks {
        levels: &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
        full: '█',
        cut: '…',
        is_ascii: false,
    };

    pub(super) const ASCII: Marks = Marks {
        levels: &['_', '.', ':', '-', '=', '+', '*', '#'],
        full: '#',
        cut: '~',
        is_ascii: true,
    };

    /// As the environment says, the first of these that is set to something.
    pub(super) fn of_locale() -> Marks {
        Marks::of(["LC_ALL", "LC_CTYPE", "LANG"].map(std::env::var_os))
    }

    fn of(locale: [Option<OsString>; 3]) -> Marks {
        let locale = locale.into_iter().flatten().find(|value| !value.is_empty());
        let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") { Marks::UTF8 } else { Marks::ASCII }
    }

    /// The last values of a history, each by its share of the largest that is shown.
    pub(super) fn history<'a>(
        self,
        values: impl DoubleEndedIterator<Item = &'a Option<f64>> + ExactSizeIterator,
        width: usize,
    ) -> String {
        let skipped = values.len().saturating_sub(width);
        let shown: Vec<Option<f64>> = values.skip(skipped).copied().collect();
        let most = shown.iter().flatten().copied().fold(0.0, f64::max);
        let mark = |value: &Option<f64>| match value {
            None => ' ',
            Some(value) => self.level(if most > 0.0 { value / most } else { 0.0 }),
        };
        let marks: String = shown.iter().map(mark).collect();
        format!("{marks:>width$}")
    }

    /// A share from 0 to 1; nothing and next to nothing look different.
    pub(super) fn level(self, share: f64) -> char {
        let steps = self.levels.len() - 1;
        // In range: the share is held between 0 and 1.
        self.levels[(share.clamp(0.0, 1.0) * steps as f64).ceil() as usize]
    }

    /// A share from 0 to 1 as a bar.
    pub(super) fn bar(self, share: f64, width: usize) -> String {
        let filled = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
        let bar: String = std::iter::repeat_n(self.full, filled).collect();
        format!("{bar:<width$}")
    }

    /// A text of somebody else's, as it may be shown.
    pub(super) fn text(self, text: &str) -> String {
        let text = clean(text);
        match self.is_ascii {
            true => text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect(),
            false => text,
        }
    }

    /// A text in exactly so many columns: cut, or with blanks behind it.
    pub(super) fn fit(self, text: &str, width: usize) -> String {
        let mut fitted = self.at_most(text, width);
        let blanks = width.saturating_sub(columns(&fitted));
        fitted.extend(std::iter::repeat_n(' ', blanks));
        fitted
    }

    /// The same, but what is cut is in the middle: both ends of a name tell it from others.
    pub(super) fn fit_middle(self, text: &str, width: usize) -> String {
        if columns(text) <= width {
            return self.fit(text, width);
        }
        let room = width.saturating_sub(1);
        let end = room / 2;
        let tail: Vec<char> = text.chars().rev().collect();
        let tail: String = Marks::fitting(tail.into_iter(), end).chars().rev().collect();
        let head = Marks::fitting(text.chars(), room - columns(&tail));
        self.fit(&format!("{head}{}{tail}", self.cut), width)
    }

    /// As many of the characters as fit.
    fn fitting(text: impl Iterator<Item = char>, width: usize) -> String {
        let (mut fitting, mut used) = (String::new(), 0);
        for character in text {
            used += columns(character.encode_utf8(&mut [0; 4]));
            if used > width {
                break;
            }
            fitting.push(character);
        }
        fitting
    }

    /// The same with blanks before it.
    pub(super) fn fit_right(self, text: &str, width: usize) -> String {
        let cut = self.at_most(text, width);
        let blanks = width.saturating_sub(columns(&cut));
        " ".repeat(blanks) + &cut
    }

    /// A text in at most so many columns.
    pub(super) fn at_most(self, text: &str, width: usize) -> String {
        if columns(text) <= width {
            return text.to_owned();
        }
        // One for the mark.
        let mut cut = Marks::fitting(text.chars(), width.saturating_sub(1));
        if width > 0 {
            cut.push(self.cut);
        }
        cut
    }
}

/// The columns of a terminal that a text takes.
pub(super) fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UTF8: Marks = Marks::UTF8;
    const ASCII: Marks = Marks::ASCII;

    #[test]
    fn the_first_locale_that_is_set_says_which_characters_there_are() {
        let of =
            |locale: [Option<&str>; 3]| Marks::of(locale.map(|l| l.map(OsString::from))).is_ascii;
        assert!(of([None, None, None]));
        assert!(of([Some("C"), None, Some("en_US.UTF-8")]));
        assert!(!of([Some(""), None, Some("C.utf8")]));
        assert!(!of([None, Some("de_DE.UTF-8"), Some("C")]));
    }

    #[test]
    fn a_history_goes_by_its_largest_value_and_has_gaps() {
        let values = [Some(9.0), Some(0.0), None, Some(1.0), Some(4.0), Some(8.0)];
        assert_eq!(UTF8.history(values.iter(), 5), "▁ ▂▅█");
        assert_eq!(ASCII.history(values.iter(), 8), "  #_ .=#");
        assert_eq!(ASCII.history([Some(0.0)].iter(), 3), "  _");
        assert_eq!(ASCII.history([].iter(), 0), "");
    }

    #[test]
    fn texts_fit_by_the_columns_that_they_take() {
        assert_eq!(UTF8.fit("abcdef", 4), "abc…");
        assert_eq!(UTF8.fit("日本語", 5), "日本…");
        assert_eq!(UTF8.fit("日本語", 4), "日… ");
        assert_eq!(UTF8.fit("ab", 4), "ab  ");
        assert_eq!(UTF8.fit_middle("relay 127.0.0.1:8080", 15), "relay 1….1:8080");
        assert_eq!(UTF8.fit_middle("日本語日本", 6), "日…本 ");
        assert_eq!((UTF8.fit_middle("abc", 1), UTF8.fit_middle("abc", 0)), ("…".into(), "".into()));
        assert_eq!(UTF8.fit_right("ab", 4), "  ab");
        assert_eq!(ASCII.at_most("abc", 0), "");
        assert_eq!(ASCII.at_most("abc", 1), "~");
        assert_eq!(ASCII.text("a\u{1b}é"), "a??");
        assert_eq!(UTF8.text("a\u{1b}é"), "a?é");
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(ASCII.bar(0.5, 4), "##  ");
        assert_eq!(ASCII.bar(7.0, 2), "##");
        assert_eq!(ASCII.bar(-1.0, 2), "  ");
        assert_eq!((ASCII.level(0.0), ASCII.level(0.01), ASCII.level(1.0)), ('_', '.', '#'));
    }
}

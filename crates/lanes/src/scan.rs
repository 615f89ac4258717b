//! The parser that CPU sets and their masks, CPU specs and lane layouts share.

use crate::{CpuSet, Error, ErrorKind, Result};

/// Digits of a group of a mask.
pub(crate) const MASK_DIGITS: usize = 8;

/// Reads a text from left to right and knows where it is, so that errors can point.
pub(crate) struct Scanner<'a> {
    what: &'static str,
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    /// `what` names the text in errors, such as "CPU set".
    pub(crate) fn new(what: &'static str, text: &'a str) -> Self {
        Self { what, text, at: 0 }
    }

    /// The byte offset of the next character.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    pub(crate) fn at_end(&self) -> bool {
        self.at == self.text.len()
    }

    pub(crate) fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    pub(crate) fn next_is_digit(&self) -> bool {
        self.text[self.at..].starts_with(|c: char| c.is_ascii_digit())
    }

    /// Takes `token` if it is next.
    pub(crate) fn take(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// Reads items up to the end, with commas between them; blanks may be around each.
    pub(crate) fn list(&mut self, mut item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        loop {
            self.skip_blanks();
            item(self)?;
            self.skip_blanks();
            if self.at_end() {
                return Ok(());
            }
            if !self.take(",") {
                return Err(self.error("expected \",\" or the end"));
            }
        }
    }

    /// One item of a CPU list: `N`, `N-M`, or the kernel's stride `N-M:USED/GROUP`, which is the
    /// first USED CPUs of each GROUP.
    pub(crate) fn cpus(&mut self) -> Result<CpuSet> {
        let first = self.cpu()?;
        if !self.take("-") {
            return Ok(CpuSet::from_iter([first]));
        }
        let last_at = self.at;
        let last = self.cpu()?;
        if last < first {
            return Err(
                self.error_at(last_at, format_args!("the range {first}-{last} runs backwards"))
            );
        }
        if !self.take(":") {
            return Ok((first..=last).collect());
        }
        let stride_at = self.at;
        let used = self.number("the number of CPUs used in each group")?;
        if !self.take("/") {
            return Err(self.error("expected \"/\" and the size of a group"));
        }
        let group = self.number("the size of a group")?;
        if used == 0 || used > group {
            let trouble =
                format_args!("expected 1 or more CPUs used, and at most the group's {group}");
            return Err(self.error_at(stride_at, trouble));
        }
        Ok((first..=last).filter(|cpu| (cpu - first) % group < used).collect())
    }

    /// A decimal number; `meaning` is what it stands for.
    pub(crate) fn number(&mut self, meaning: &str) -> Result<usize> {
        let start = self.at;
        let rest = &self.text[start..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 {
            return Err(self.error(format_args!("expected {meaning}")));
        }
        self.at += digits;
        rest[..digits]
            .parse()
            .map_err(|_| self.error_at(start, format_args!("{} is too large", &rest[..digits])))
    }

    /// One group of a mask, of at least `least` digits: its bits.
    pub(crate) fn group(&mut self, least: usize) -> Result<u32> {
        let rest = &self.text[self.at..];
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_hexdigit()).len();
        let read = u32::from_str_radix(&rest[..digits], 16).ok();
        match read.filter(|_| (least..=MASK_DIGITS).contains(&digits)) {
            Some(bits) => {
                self.at += digits;
                Ok(bits)
            }
            None if least == MASK_DIGITS => Err(self.error("expected 8 hexadecimal digits")),
            None => Err(self.error("expected 1 to 8 hexadecimal digits")),
        }
    }

    pub(crate) fn error(&self, trouble: impl std::fmt::Display) -> Error {
        self.error_at(self.at, trouble)
    }

    /// An error at a byte offset that [`offset`](Self::offset) gave.
    pub(crate) fn error_at(&self, at: usize, trouble: impl std::fmt::Display) -> Error {
        self.fault_at(ErrorKind::Syntax, at, trouble)
    }

    /// An error that is not about the syntax, at a byte offset.
    pub(crate) fn fault_at(
        &self,
        kind: ErrorKind,
        at: usize,
        trouble: impl std::fmt::Display,
    ) -> Error {
        let Self { what, text, .. } = self;
        let character = text[..at].chars().count() + 1;
        let message = format!("{what} {text:?}: {trouble} at character {character}");
        Error::new(kind, message).at(at)
    }

    fn cpu(&mut self) -> Result<usize> {
        let start = self.at;
        let cpu = self.number("a CPU number")?;
        if cpu > CpuSet::MAX {
            let trouble = format_args!("CPU {cpu} is past the last possible one, {},", CpuSet::MAX);
            return Err(self.error_at(start, trouble));
        }
        Ok(cpu)
    }
}

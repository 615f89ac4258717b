//! What a process is called by people.

use std::fmt;
use std::str::FromStr;

use crate::{Error, ErrorKind, Result};

/// The longest name in characters.
const MAX: usize = 80;

/// The name of a process, such as `relay :8080`: a few words, shown to people and used by them to say
/// which process they mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessName(String);

impl ProcessName {
    /// A name made of something that may be too long for one, or have characters that none has.
    pub fn of(text: &str) -> Self {
        let mut name: String =
            text.chars().take(MAX).map(|c| if fits(c) { c } else { '?' }).collect();
        if text.chars().count() > MAX {
            name.pop();
            name.push('…');
        }
        Self(name.trim().to_owned())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProcessName {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::BadName`].
    fn from_str(text: &str) -> Result<Self> {
        let length = text.chars().count();
        if (1..=MAX).contains(&length) && text.chars().all(fits) && text.trim() == text {
            return Ok(Self(text.to_owned()));
        }
        let message = format!(
            "name {text:?}: expected 1 to {MAX} printable characters, and no blank at an end"
        );
        Err(Error::new(ErrorKind::BadName, message))
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// It is shown on terminals, where control characters would do things.
fn fits(c: char) -> bool {
    !c.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_do_nothing_to_a_terminal() {
        for name in ["relay :8080", "a", "brücke 1", &"x".repeat(MAX)] {
            assert_eq!(name.parse::<ProcessName>().unwrap().as_str(), name);
        }
        for name in ["", " ", "a ", "a\nb", "\u{1b}[2J", &"x".repeat(MAX + 1)] {
            assert_eq!(name.parse::<ProcessName>().unwrap_err().kind(), ErrorKind::BadName);
        }
        assert_eq!(ProcessName::of("a\u{7}b").as_str(), "a?b");
        assert_eq!(ProcessName::of(&"ü".repeat(MAX + 1)).as_str().chars().count(), MAX);
    }
}

//! What the kernel makes of a value: its text as read, and which texts are the same value.

use lanes::CpuSet;

/// What a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text {
    value: String,
    /// The words of a choice.
    choices: Vec<String>,
}

impl Text {
    /// # Errors
    /// Several lines, and what they are taken for.
    pub(super) fn of(read: &str) -> Result<Self, String> {
        // Some strings end with a NUL.
        let read = read.trim_end_matches(['\n', '\0']);
        if read.contains(['\n', '\0']) {
            return Err("it has several lines, and the kernel does not take them back".to_owned());
        }
        let words: Vec<&str> = read.split_ascii_whitespace().collect();
        let chosen = |word: &&str| word.len() > 2 && word.starts_with('[') && word.ends_with(']');
        let mut brackets = words.iter().filter(|word| chosen(word));
        if let (Some(one), None) = (brackets.next(), brackets.next()) {
            let bare = |word: &str| word.trim_matches(['[', ']']).to_owned();
            let choices = words.iter().map(|word| bare(word)).collect();
            return Ok(Self { value: bare(one), choices });
        }
        // As it stands: a text may mean its spaces.
        Ok(Self { value: read.to_owned(), choices: Vec::new() })
    }

    pub(super) fn value(&self) -> &str {
        &self.value
    }

    /// What a choice takes; none if it is not one.
    pub(super) fn choices(&self) -> Option<impl Iterator<Item = &str> + Clone> {
        let choices = self.choices.iter().map(String::as_str);
        (!self.choices.is_empty()).then_some(choices)
    }
}

/// Whether two texts are one value to the kernel: white space does not count, nor do leading zeros
/// of numbers and of masks of CPUs, which are hexadecimal groups such as `00000000,0000000f`.
pub(crate) fn same(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split_ascii_whitespace(), other.split_ascii_whitespace());
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(one), Some(other)) if one == other || is_same_mask(one, other) => {}
            _ => return false,
        }
    }
}

/// A number of up to eight digits reads as a mask too, and two are one mask if they are one number.
fn is_same_mask(one: &str, other: &str) -> bool {
    let mask = |word| CpuSet::from_mask(word).ok();
    mask(one).is_some_and(|one| mask(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_the_value_that_can_be_written_again() {
        for (read, value, choices) in [
            ("64\n", "64", ""),
            ("4096\t131072\t6291456\n", "4096\t131072\t6291456", ""),
            ("always [madvise] never\n", "madvise", "always madvise never"),
            ("[none] mq-deadline\n", "none", "none mq-deadline"),
            ("[none]\n", "none", "none"),
            ("|/bin/dump  %p\n", "|/bin/dump  %p", ""),
            ("[two] [of] them\n", "[two] [of] them", ""),
            ("", "", ""),
            ("\n", "", ""),
            ("cubic\0", "cubic", ""),
        ] {
            let text = Text::of(read).unwrap();
            assert_eq!(text.value(), value, "{read:?}");
            let words: Vec<_> = text.choices().into_iter().flatten().collect();
            assert_eq!(words.join(" "), choices, "{read:?}");
        }
        assert!(Text::of("8:0 rbps=1\n8:16 rbps=2\n").unwrap_err().contains("several lines"));
    }

    #[test]
    fn one_value_in_two_spellings_is_one_value() {
        for (one, other, is_same) in [
            ("f", "0000000f", true),
            ("F", "00000000,0000000f", true),
            ("1,00000000", "00000001,00000000", true),
            ("0", "00", true),
            ("4096 131072", "4096\t131072", true),
            ("10", "1", false),
            ("1,2", "12", false),
            ("1,00000002", "100000002", false),
            ("0-3", "0-03", false),
            ("-1", "1", false),
            ("", "0", false),
            ("4096 131072", "4096", false),
            ("cubic", "reno", false),
        ] {
            assert_eq!(same(one, other), is_same, "{one:?} {other:?}");
            assert_eq!(same(other, one), is_same, "{other:?} {one:?}");
        }
    }
}

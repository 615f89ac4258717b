//! Values as people write them on the command line.

use std::time::Duration;

/// Reads a time span: `500ms`, `5s`, `1h30m`.
pub(crate) fn duration(s: &str) -> Result<Duration, String> {
    humantime::parse_duration(s).map_err(|e| format!("{e} (expected a time such as 500ms, 5s, 1h)"))
}

/// A time after which something ends; none if it was written as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeout(pub(crate) Option<Duration>);

/// Reads a [`Timeout`]: as [`duration`], or 0.
pub(crate) fn timeout(s: &str) -> Result<Timeout, String> {
    let span = if s == "0" { Duration::ZERO } else { duration(s)? };
    Ok(Timeout(Some(span).filter(|d| !d.is_zero())))
}

/// Reads a size in bytes, with K, M or G for powers of 1024.
pub(crate) fn size(s: &str) -> Result<usize, String> {
    let expected = || format!("'{s}' is not a size (expected bytes, or a number with K, M or G)");
    let (number, shift) = match s.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&s[..at], 10),
        Some((at, 'm' | 'M')) => (&s[..at], 20),
        Some((at, 'g' | 'G')) => (&s[..at], 30),
        _ => (s, 0),
    };
    let number: usize = number.parse().map_err(|_| expected())?;
    number.checked_mul(1 << shift).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes() {
        for (given, expected) in [("0", 0), ("64K", 65_536), ("8m", 8 << 20), ("2G", 2 << 30)] {
            assert_eq!(size(given), Ok(expected), "{given}");
        }
        for given in ["", "K", "8MB", "-1", "1.5M", "99999999999G", "ü"] {
            assert!(size(given).unwrap_err().contains(given), "{given}");
        }
    }

    #[test]
    fn zero_means_no_timeout() {
        assert_eq!(timeout("0"), Ok(Timeout(None)));
        assert_eq!(timeout("0s"), Ok(Timeout(None)));
        assert_eq!(timeout("1h"), Ok(Timeout(Some(Duration::from_secs(3600)))));
        assert!(timeout("soon").is_err());
    }
}

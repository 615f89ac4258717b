use std::fmt;
use std::str::FromStr;

/// A hardware address, which is written as `ip` writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let bad =
            || format!("'{s}' is not a hardware address (expected such as 02:00:00:00:00:01)");
        let mut mac = [0; 6];
        let mut parts = s.split(':');
        for byte in &mut mac {
            let part = parts.next().filter(|part| (1..=2).contains(&part.len())).ok_or_else(bad)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() {
            return Err(bad());
        }
        Ok(Mac(mac))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parses_is_printed_as_it_is_written() {
        for mac in ["02:00:00:00:00:01", "ff:ff:ff:ff:ff:ff"] {
            assert_eq!(mac.parse::<Mac>().map(|mac| mac.to_string()).as_deref(), Ok(mac));
        }
    }

    #[test]
    fn what_does_not_parse_is_named() {
        for mac in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:01:02",
            "02:00:00:00:00:0g",
            "2:::::",
            "001:2:3:4:5:6",
        ] {
            assert!(mac.parse::<Mac>().unwrap_err().contains(&format!("'{mac}'")), "{mac}");
        }
    }
}

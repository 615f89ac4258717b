//! What happens to a frame that is freed away from its home.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// What happens to a frame that is freed away from its home: the knob `frames.alien_free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AlienFree {
    /// It stays where it was freed; what is too much goes to the depot, by whole magazines.
    Recycle,
    /// It goes home, in batches, to wait in the home's inbox.
    Defer,
    /// Inside its lane as `Recycle`; across lanes it stays while there is room, and the surplus
    /// goes home.
    #[default]
    Auto,
}

impl AlienFree {
    /// All values.
    pub const ALL: [AlienFree; 3] = [AlienFree::Recycle, AlienFree::Defer, AlienFree::Auto];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            AlienFree::Recycle => "recycle",
            AlienFree::Defer => "defer",
            AlienFree::Auto => "auto",
        }
    }
}

impl fmt::Display for AlienFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AlienFree {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        AlienFree::ALL
            .into_iter()
            .find(|value| value.name() == s)
            .ok_or_else(|| Error::invalid(format!("'{s}' is not recycle, defer or auto")))
    }
}

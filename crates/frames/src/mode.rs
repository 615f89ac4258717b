//! What happens to a frame that is freed away from its home.

use strum::{Display, EnumString, IntoStaticStr};

use crate::Error;

/// What happens to a frame that is freed away from its home: the knob `frames.alien_free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase", parse_err_ty = Error, parse_err_fn = unknown)]
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
        self.into()
    }
}

fn unknown(name: &str) -> Error {
    Error::invalid(format!("'{name}' is not {}", kit::or(AlienFree::ALL.map(AlienFree::name))))
}

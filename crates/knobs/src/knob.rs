//! One knob, from the inside and as others see it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// A named setting that can be flipped while traffic flows.
pub struct Knob {
    pub(crate) name: String,
    help: String,
    values: Values,
    pub(crate) default: String,
    pub(crate) current: Box<dyn Fn() -> String + Send + Sync>,
    pub(crate) set: Box<Setter>,
}

type Setter = dyn Fn(&str) -> std::result::Result<(), String> + Send + Sync;

impl Knob {
    /// A knob such as `relay.engine`: lowercase words of letters, digits and `_`, joined by dots.
    ///
    /// `current` gives the value in force. `set` puts a value in force before it returns, or
    /// returns why not and changes nothing; it is called only with values that `values` takes.
    pub fn new(
        name: &str,
        help: &str,
        values: Values,
        default: &str,
        current: impl Fn() -> String + Send + Sync + 'static,
        set: impl Fn(&str) -> std::result::Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            help: help.to_owned(),
            values,
            default: default.to_owned(),
            current: Box::new(current),
            set: Box::new(set),
        }
    }

    pub(crate) fn info(&self) -> KnobInfo {
        KnobInfo {
            name: self.name.clone(),
            help: self.help.clone(),
            values: self.values.clone(),
            default: self.default.clone(),
            value: (self.current)(),
        }
    }

    pub(crate) fn check(&self, value: &str) -> Result<()> {
        match &self.values {
            Values::OneOf(values) if !values.iter().any(|known| known == value) => {
                Err(self.refuse(value, None))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn refuse(&self, value: &str, trouble: Option<&str>) -> Error {
        let trouble = trouble.map(|trouble| format!(": {trouble}")).unwrap_or_default();
        let (name, values) = (&self.name, &self.values);
        let message = format!("knob {name} does not take {value:?}{trouble} (expected {values})");
        Error::new(ErrorKind::BadValue, message)
    }
}

impl fmt::Debug for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Knob").field("name", &self.name).field("values", &self.values).finish()
    }
}

/// What a knob takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Values {
    /// One of these words.
    OneOf(Vec<String>),
    /// Any text of the form that is described, such as "CPU set"; the setter decides.
    Text(String),
}

impl Values {
    /// One of these words.
    pub fn one_of<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        Self::OneOf(values.into_iter().map(str::to_owned).collect())
    }

    /// `off` or `on`.
    pub fn off_on() -> Self {
        Self::one_of(["off", "on"])
    }

    /// Text of the form that is described, such as "CPU set".
    pub fn text(form: &str) -> Self {
        Self::Text(form.to_owned())
    }
}

impl fmt::Display for Values {
    /// Such as `off or on`, `copy, splice or auto`, `CPU set`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneOf(values) => match values.split_last() {
                Some((last, [])) => f.write_str(last),
                Some((last, rest)) => write!(f, "{} or {last}", rest.join(", ")),
                None => f.write_str("nothing"),
            },
            Self::Text(form) => f.write_str(form),
        }
    }
}

/// A knob as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnobInfo {
    /// Such as `relay.engine`.
    pub name: String,
    /// What it is, in a few words.
    pub help: String,
    /// What it takes.
    pub values: Values,
    /// What it is when nobody has set it.
    pub default: String,
    /// What it is now.
    pub value: String,
}

//! One knob, from the inside and as others see it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::said::Said;
use crate::{Error, ErrorKind, Result};

/// A named setting that can be flipped while traffic flows.
pub struct Knob {
    pub(crate) name: String,
    help: String,
    values: Values,
    pub(crate) default: String,
    reach: Reach,
    pub(crate) exposure: Option<Exposure>,
    read: Box<Getter>,
    pub(crate) set: Box<Setter>,
}

type Getter = dyn Fn() -> std::result::Result<String, String> + Send + Sync;
type Setter = dyn Fn(&str) -> std::result::Result<(), String> + Send + Sync;

impl Knob {
    /// A knob that is off or on, such as `bridge.fastpath`. A name is lowercase words of letters,
    /// digits and `_`, joined by dots.
    ///
    /// `get` gives the value in force, or says why it cannot be read. `set` puts a value in force
    /// before it returns, or says why not and changes nothing.
    pub fn off_on<E: fmt::Display>(
        name: &str,
        help: &str,
        default: bool,
        get: impl Fn() -> std::result::Result<bool, E> + Send + Sync + 'static,
        set: impl Fn(bool) -> std::result::Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        let word = |on: bool| if on { "on" } else { "off" };
        let get = move || get().map(word);
        Self::choice(name, help, &["off", "on"], word(default), get, move |new| set(new == "on"))
    }

    /// A knob that takes one of `all` values, such as `relay.engine`; `Display` gives the words
    /// for them. `get` and `set` are as for [`off_on`](Self::off_on).
    pub fn choice<T, E: fmt::Display>(
        name: &str,
        help: &str,
        all: &'static [T],
        default: T,
        get: impl Fn() -> std::result::Result<T, E> + Send + Sync + 'static,
        set: impl Fn(T) -> std::result::Result<(), E> + Send + Sync + 'static,
    ) -> Self
    where
        T: Copy + fmt::Display + Sync,
    {
        let values = Values::OneOf(all.iter().map(text).collect());
        let takes = values.clone();
        let parse = move |new: &str| {
            let named = all.iter().find(|one| one.to_string() == new);
            named.copied().ok_or_else(|| format!("expected {takes}"))
        };
        Self {
            name: name.to_owned(),
            help: help.to_owned(),
            values,
            default: default.to_string(),
            reach: Reach::AtOnce,
            exposure: None,
            read: Box::new(move || get().map(text).map_err(text)),
            set: Box::new(move |new| set(parse(new)?).map_err(text)),
        }
    }

    /// A knob that takes any text from which a `T` can be read, such as `relay.cpus`; `form` says
    /// what that is, such as "CPU set". `get` and `set` are as for [`off_on`](Self::off_on).
    pub fn parsed<T, V: fmt::Display, E: fmt::Display>(
        name: &str,
        help: &str,
        form: &str,
        default: &str,
        get: impl Fn() -> std::result::Result<V, E> + Send + Sync + 'static,
        set: impl Fn(T) -> std::result::Result<(), E> + Send + Sync + 'static,
    ) -> Self
    where
        T: FromStr<Err: fmt::Display>,
    {
        Self {
            name: name.to_owned(),
            help: help.to_owned(),
            values: Values::Text(form.to_owned()),
            default: default.to_owned(),
            reach: Reach::AtOnce,
            exposure: None,
            read: Box::new(move || get().map(text).map_err(text)),
            set: Box::new(move |new| set(new.parse().map_err(text)?).map_err(text)),
        }
    }

    /// Says what a new value reaches; [`Reach::AtOnce`] where this is not called.
    pub fn reaching(self, reach: Reach) -> Self {
        Self { reach, ..self }
    }

    /// Names the counters, registered beside the knob, that say which share of the work runs under
    /// the present value: for a knob that does not reach all of it at once. See [`Exposure`].
    pub fn exposed(self, under: &str, of: &str) -> Self {
        let exposure = Some(Exposure { under: under.to_owned(), of: of.to_owned() });
        Self { exposure, ..self }
    }

    /// The value in force.
    pub(crate) fn value(&self) -> Result<String> {
        (self.read)().map_err(|trouble| {
            let message = format!("knob {} cannot be read: {trouble}", self.name);
            Error::new(ErrorKind::Unreadable, message)
        })
    }

    pub(crate) fn info(&self, held: Option<HoldInfo>) -> KnobInfo {
        KnobInfo {
            name: self.name.clone(),
            help: self.help.clone(),
            values: self.values.clone(),
            default: self.default.clone(),
            reach: self.reach,
            exposure: self.exposure.clone(),
            held,
            value: Current::of((self.read)()),
            more: Map::new(),
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
    /// Something that a process of a later version says.
    #[serde(untagged)]
    Unknown(Value),
}

impl Default for Values {
    fn default() -> Self {
        Self::Unknown(Value::Null)
    }
}

impl fmt::Display for Values {
    /// Such as `off or on`, `copy, splice or auto`, `CPU set`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneOf(values) => f.write_str(&kit::or(values.iter().map(String::as_str))),
            Self::Text(form) => f.write_str(form),
            Self::Unknown(Value::Null) => f.write_str("unknown"),
            Self::Unknown(said) => write!(f, "{said}"),
        }
    }
}

/// What a new value of a knob reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reach {
    /// All that flows, as soon as the setter has returned.
    AtOnce,
    /// What connects after the setter has returned. What was connected before may keep what it had.
    NewConnections,
    /// Nobody has said: a process of another version, or a setting of the host.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What tells which share of a knob's work ran under its present value: two counters of the same
/// process. Over a stretch of time in which the knob was not set, the share is the growth of `under`
/// by the growth of `of`; if nothing was done, there is none.
///
/// The two are read one after the other while work goes on, so a share may come out a little above 1,
/// which means 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposure {
    /// Counts work that is done as the knob's present value wants it, such as
    /// `relay.bytes_under_engine`.
    pub under: String,
    /// Counts all such work, such as `relay.bytes`.
    pub of: String,
}

/// Who holds a knob. See [`Subject::hold`](crate::Subject::hold).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldInfo {
    /// Who it is in a few words, such as `trial, pid 123`.
    pub holder: String,
    /// How long the hold lasts unless it is renewed, in milliseconds.
    pub left_ms: u64,
    /// What the knob is set back to when the hold ends.
    pub before: String,
}

/// A knob as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Value")]
pub struct KnobInfo {
    /// Such as `relay.engine`.
    pub name: String,
    /// What it is, in a few words.
    pub help: String,
    /// What it takes.
    pub values: Values,
    /// What it is when nobody has set it.
    pub default: String,
    /// What a new value reaches.
    pub reach: Reach,
    /// What tells how much of the work runs under the present value, if something does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
    /// Who holds it, if somebody does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<HoldInfo>,
    /// What it is now; on the wire as a field `value` or `error` of this.
    #[serde(flatten)]
    pub value: Current<String>,
    /// What else a process of a later version says of it.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl From<Value> for KnobInfo {
    /// Understands as much as possible of what a process of another version says.
    fn from(said: Value) -> Self {
        let mut said = Said::of(said);
        Self {
            name: said.text("name"),
            help: said.text("help"),
            values: said.known("values"),
            default: said.text("default"),
            reach: said.known("reach"),
            exposure: said.optional("exposure"),
            held: said.optional("held"),
            value: said.current(),
            more: said.rest(),
        }
    }
}

/// What a knob or a counter is at this moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Current<T> {
    /// This.
    Value(T),
    /// It cannot be read, for this reason.
    Error(String),
}

impl<T> Current<T> {
    pub(crate) fn of(read: std::result::Result<T, String>) -> Self {
        read.map_or_else(Self::Error, Self::Value)
    }

    /// The value; none if it cannot be read.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Error(_) => None,
        }
    }
}

impl<T: fmt::Display> fmt::Display for Current<T> {
    /// The value, or `unreadable: ` and why.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Error(trouble) => write!(f, "unreadable: {trouble}"),
        }
    }
}

fn text(value: impl fmt::Display) -> String {
    value.to_string()
}

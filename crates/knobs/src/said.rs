//! What a process says of one knob or counter, read field by field: one that is of another version may
//! say more, or something else, than is known here, and what is known should still be shown.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::Current;

pub(crate) struct Said(Map<String, Value>);

impl Said {
    pub(crate) fn of(said: Value) -> Self {
        match said {
            Value::Object(fields) => Self(fields),
            // Not even an object: at least it is shown.
            other => Self(Map::from_iter([("name".to_owned(), other.to_string().into())])),
        }
    }

    /// A field as text, whatever it is.
    pub(crate) fn text(&mut self, field: &str) -> String {
        self.0.remove(field).map(text).unwrap_or_default()
    }

    /// A field that stays unknown unless it is understood.
    pub(crate) fn known<T: DeserializeOwned + Default>(&mut self, field: &str) -> T {
        let value = self.0.remove(field).unwrap_or_default();
        serde_json::from_value(value).unwrap_or_default()
    }

    /// A field that may not be there.
    pub(crate) fn optional<T: DeserializeOwned>(&mut self, field: &str) -> Option<T> {
        serde_json::from_value(self.0.remove(field)?).ok()
    }

    /// The value, or why there is none.
    pub(crate) fn current<T: FromSaid>(&mut self) -> Current<T> {
        let (value, error) = (self.0.remove("value"), self.0.remove("error"));
        match (value, error) {
            (Some(value), _) => T::from_said(value).map_or_else(Current::Error, Current::Value),
            (None, Some(error)) => Current::Error(text(error)),
            (None, None) => Current::Error("the process does not say".into()),
        }
    }

    /// What has not been asked for.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.0
    }
}

/// What a value can be read as.
pub(crate) trait FromSaid: Sized {
    fn from_said(value: Value) -> Result<Self, String>;
}

impl FromSaid for String {
    fn from_said(value: Value) -> Result<Self, String> {
        Ok(text(value))
    }
}

impl FromSaid for u64 {
    fn from_said(value: Value) -> Result<Self, String> {
        value.as_u64().ok_or_else(|| format!("{value} is no count that is known here"))
    }
}

fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

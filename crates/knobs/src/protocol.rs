//! Requests and replies: bytes in, bytes out, no I/O.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::entry::By;
use crate::{Error, ErrorKind, Registry, Result};

/// The version of the protocol.
pub const SCHEMA: u64 = 1;

/// The longest request in bytes, without the line end.
pub const MAX_LINE: usize = 64 * 1024;

/// What a client may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// All knobs.
    List {},
    /// One knob's value.
    Get {
        /// Its name.
        knob: String,
    },
    /// Set one knob.
    Set {
        /// Its name.
        knob: String,
        /// The new value.
        value: String,
        /// The token of the hold that one has on it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<String>,
        /// End the hold that somebody else has on it.
        #[serde(default, skip_serializing_if = "is_false")]
        force: bool,
    },
    /// Keep one knob from everybody else for a while. To ask again with the same token does no harm.
    Hold {
        /// Its name.
        knob: String,
        /// A token of the holder's making, which nobody else has.
        hold: String,
        /// Who the holder is in a few words.
        holder: String,
        /// How long the hold lasts unless it is renewed, in milliseconds.
        ms: u64,
    },
    /// Let a hold last longer.
    Renew {
        /// The knob's name.
        knob: String,
        /// The hold's token.
        hold: String,
        /// How long it lasts from now on, in milliseconds.
        ms: u64,
    },
    /// End a hold, and put the knob back to what it was before.
    Release {
        /// The knob's name.
        knob: String,
        /// The hold's token.
        hold: String,
        /// Leave the knob as it is.
        #[serde(default, skip_serializing_if = "is_false")]
        keep: bool,
    },
    /// All counters and gauges.
    Counters {},
}

impl Request {
    /// Reads one line, with or without its end.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`], [`ErrorKind::Schema`], and [`ErrorKind::Malformed`] for anything
    /// else that is not a request: not JSON, a field missing, unknown or not a string.
    pub fn parse(line: &[u8]) -> Result<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if line.len() > MAX_LINE {
            return Err(too_large());
        }
        let mut fields: Map<String, Value> = serde_json::from_slice(line)
            .map_err(|error| malformed(format!("the request is not a JSON object: {error}")))?;
        match fields.remove("schema") {
            Some(schema) if schema == SCHEMA => {}
            Some(schema) => {
                let message = format!("schema {schema} is not spoken here (expected {SCHEMA})");
                return Err(Error::new(ErrorKind::Schema, message));
            }
            None => return Err(malformed("the request has no \"schema\"")),
        }
        let request = serde_json::from_value(fields.into());
        request.map_err(|error| malformed(format!("the request makes no sense: {error}")))
    }

    /// The request as one line with its end.
    pub fn to_line(&self) -> String {
        let mut fields = json!(self);
        fields["schema"] = SCHEMA.into();
        format!("{fields}\n")
    }
}

/// Answers one line: always with one line of JSON with its end, whatever the bytes are, and also
/// where a knob's own code panics.
pub fn reply(registry: &Registry, line: &[u8]) -> Vec<u8> {
    // A closure of the registry may have broken its own state; the registry has none to break.
    let answer = catch_unwind(AssertUnwindSafe(|| {
        Request::parse(line).and_then(|request| answer(registry, request))
    }));
    match answer {
        Ok(Ok(ok)) => to_line(&json!({"schema": SCHEMA, "ok": ok})),
        Ok(Err(error)) => error_line(&error),
        Err(_) => {
            let process = registry.process();
            let message = format!("{process} panicked while it answered; its log has the reason");
            error_line(&Error::new(ErrorKind::Internal, message))
        }
    }
}

fn answer(registry: &Registry, request: Request) -> Result<Value> {
    Ok(match request {
        Request::List {} => {
            let process = registry.process();
            json!({"process": process, "pid": std::process::id(), "knobs": registry.list()})
        }
        Request::Get { knob } => {
            let value = registry.get(&knob)?;
            json!({"knob": knob, "value": value})
        }
        Request::Set { knob, value, hold, force } => {
            let by = match &hold {
                Some(_) if force => {
                    return Err(malformed("\"force\" and \"hold\" exclude each other"));
                }
                Some(token) => By::Holder(token),
                None if force => By::Force,
                None => By::Anybody,
            };
            let value = registry.set_by(&knob, &value, by)?;
            json!({"knob": knob, "value": value})
        }
        Request::Hold { knob, hold, holder, ms } => {
            let value = registry.hold(&knob, &hold, &holder, ms)?;
            json!({"knob": knob, "value": value})
        }
        Request::Renew { knob, hold, ms } => {
            let value = registry.renew(&knob, &hold, ms)?;
            json!({"knob": knob, "value": value})
        }
        Request::Release { knob, hold, keep } => {
            let value = registry.release(&knob, &hold, keep)?;
            json!({"knob": knob, "value": value})
        }
        Request::Counters {} => json!({"counters": registry.readings()}),
    })
}

/// What serde leaves out.
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The line that reports an error.
pub(crate) fn error_line(error: &Error) -> Vec<u8> {
    let message = error.to_string();
    to_line(&json!({"schema": SCHEMA, "error": {"kind": error.kind(), "message": message}}))
}

pub(crate) fn too_large() -> Error {
    let message = format!("the request is longer than {MAX_LINE} bytes");
    Error::new(ErrorKind::TooLarge, message)
}

fn malformed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Malformed, message)
}

fn to_line(value: &Value) -> Vec<u8> {
    format!("{value}\n").into_bytes()
}

/// An answer as a client reads it.
#[derive(Deserialize)]
struct Reply {
    schema: u64,
    ok: Option<Map<String, Value>>,
    error: Option<WireError>,
}

#[derive(Deserialize)]
struct WireError {
    kind: ErrorKind,
    message: String,
}

/// Reads an answer: what its field of this name holds.
pub(crate) fn parse_reply<T: DeserializeOwned>(line: &[u8], field: &str) -> Result<T> {
    let nonsense = |error| malformed(format!("the answer makes no sense: {error}"));
    match serde_json::from_slice(line).map_err(nonsense)? {
        Reply { error: Some(WireError { kind, message }), .. } => Err(Error::new(kind, message)),
        Reply { schema: SCHEMA, ok: Some(mut ok), .. } => {
            serde_json::from_value(ok.remove(field).unwrap_or_default()).map_err(nonsense)
        }
        Reply { schema, .. } => {
            let message = format!("the process answers in schema {schema} (expected {SCHEMA})");
            Err(Error::new(ErrorKind::Schema, message))
        }
    }
}

//! Requests and replies: bytes in, bytes out, no I/O.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::entry::By;
use crate::{Answer, Error, ErrorKind, Listing, Peer, ProcessName, Registry, Result};

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
        /// Only if this is its value now.
        #[serde(default, rename = "if", skip_serializing_if = "Option::is_none")]
        only_if: Option<String>,
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
    /// A request that the process has a handler of its own for.
    Ask {
        /// The request's name.
        request: String,
        /// What it is about.
        #[serde(default, skip_serializing_if = "Value::is_null")]
        with: Value,
    },
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

/// Answers one line of this process's own: always with one line of JSON with its end, whatever the
/// bytes are, and also where a knob's own code panics.
pub fn reply(registry: &Registry, line: &[u8]) -> Vec<u8> {
    respond(registry, line, Peer::ours()).line
}

/// One line, and the files that go beside it.
pub(crate) struct Reply {
    pub(crate) line: Vec<u8>,
    pub(crate) files: Vec<OwnedFd>,
}

impl From<Vec<u8>> for Reply {
    fn from(line: Vec<u8>) -> Self {
        Self { line, files: Vec::new() }
    }
}

/// As [`reply`], to a client, and with the files that its answer may have.
pub(crate) fn respond(registry: &Registry, line: &[u8], peer: Peer) -> Reply {
    // What is logged meanwhile, such as a knob that is set, says who did it.
    let _by = tracing::info_span!("by", uid = peer.uid, pid = peer.pid).entered();
    // A closure of the registry may have broken its own state; the registry has none to break.
    let answer = catch_unwind(AssertUnwindSafe(|| {
        Request::parse(line).and_then(|request| answer(registry, request, peer))
    }));
    match answer {
        Ok(Ok(Answer { value, files })) => {
            Reply { line: to_line(&json!({"schema": SCHEMA, "ok": value})), files }
        }
        Ok(Err(error)) => error_line(&error).into(),
        Err(_) => {
            let process = registry.process();
            let message = format!("{process} panicked while it answered; its log has the reason");
            error_line(&Error::new(ErrorKind::Internal, message)).into()
        }
    }
}

fn answer(registry: &Registry, request: Request, peer: Peer) -> Result<Answer> {
    let value = match request {
        Request::List {} => {
            let (process, name) = (registry.process(), registry.name().as_str());
            json!({"process": process, "name": name, "pid": std::process::id(), "knobs": registry.list()})
        }
        Request::Get { knob } => {
            let value = registry.get(&knob)?;
            json!({"knob": knob, "value": value})
        }
        Request::Set { knob, value, hold, force, only_if } => {
            let by = match &hold {
                Some(_) if force => {
                    return Err(malformed("\"force\" and \"hold\" exclude each other"));
                }
                Some(token) => By::Holder(token),
                None if force => By::Force,
                None => By::Anybody,
            };
            let value = registry.set_by(&knob, &value, by, only_if.as_deref())?;
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
        Request::Ask { request, with } => {
            let Answer { value, files } = registry.ask(&request, &with, peer)?;
            let value = json!({"answer": value, "files": files.len()});
            return Ok(Answer { value, files });
        }
    };
    Ok(Answer { value, files: Vec::new() })
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
struct Answered {
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
    let mut ok = parse_ok(line)?;
    serde_json::from_value(ok.remove(field).unwrap_or_default()).map_err(nonsense)
}

/// Reads the answer to [`Request::List`].
pub(crate) fn parse_listing(line: &[u8]) -> Result<Listing> {
    let mut ok = parse_ok(line)?;
    let mut take = |field| ok.remove(field).unwrap_or_default();
    // One of an earlier version has no name but that of its kind.
    let name = [take("name"), take("process")]
        .into_iter()
        .find_map(|name| name.as_str().map(|name| ProcessName::of(name).to_string()));
    let knobs = serde_json::from_value(take("knobs")).map_err(nonsense)?;
    Ok(Listing { name: name.unwrap_or_default(), knobs })
}

/// Reads the answer to [`Request::Ask`], beside which these files came.
pub(crate) fn parse_answer(line: &[u8], files: Vec<OwnedFd>) -> Result<Answer> {
    let mut ok = parse_ok(line)?;
    let said = ok.get("files").and_then(Value::as_u64).unwrap_or(0);
    if said != files.len() as u64 {
        let message = format!(
            "{} of {said} files came with the answer; the limit on open files may be too low",
            files.len()
        );
        return Err(Error::new(ErrorKind::Io, message));
    }
    Ok(Answer { value: ok.remove("answer").unwrap_or_default(), files })
}

fn nonsense(error: serde_json::Error) -> Error {
    malformed(format!("the answer makes no sense: {error}"))
}

fn parse_ok(line: &[u8]) -> Result<Map<String, Value>> {
    match serde_json::from_slice(line).map_err(nonsense)? {
        Answered { error: Some(WireError { kind, message }), .. } => Err(Error::new(kind, message)),
        Answered { schema: SCHEMA, ok: Some(ok), .. } => Ok(ok),
        Answered { schema, .. } => {
            let message = format!("the process answers in schema {schema} (expected {SCHEMA})");
            Err(Error::new(ErrorKind::Schema, message))
        }
    }
}

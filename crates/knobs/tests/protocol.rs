//! Any bytes get exactly one reply.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use cachelane_knobs::{ErrorKind, Knob, MAX_LINE, MeterKind, Registry, Request, reply};
use proptest::prelude::*;
use serde_json::{Value, json};

#[test]
fn requests_are_answered() {
    let registry = registry();
    for (request, answer) in [
        (r#"{"schema":1,"op":"get","knob":"t.mode"}"#, json!({"knob": "t.mode", "value": "off"})),
        (
            r#"{"schema":1,"op":"set","knob":"t.mode","value":"on"}"#,
            json!({"knob": "t.mode", "value": "on"}),
        ),
        (
            r#"{"schema":1,"op":"hold","knob":"t.mode","hold":"x","holder":"me","ms":60000}"#,
            json!({"knob": "t.mode", "value": "on"}),
        ),
        (
            r#"{"schema":1,"op":"set","knob":"t.mode","value":"off","hold":"x"}"#,
            json!({"knob": "t.mode", "value": "off"}),
        ),
        (
            r#"{"schema":1,"op":"renew","knob":"t.mode","hold":"x","ms":60000}"#,
            json!({"knob": "t.mode", "value": "off"}),
        ),
        (
            r#"{"schema":1,"op":"release","knob":"t.mode","hold":"x"}"#,
            json!({"knob": "t.mode", "value": "on"}),
        ),
        (
            // Asked again, for the first answer was lost.
            r#"{"schema":1,"op":"release","knob":"t.mode","hold":"x","keep":false}"#,
            json!({"knob": "t.mode", "value": "on"}),
        ),
        (
            r#" {"op":"counters" , "schema":1} "#,
            json!({"counters": [{
                "name": "t.bytes", "unit": "bytes", "help": "sent", "kind": "counter",
                "value": u64::MAX,
            }]}),
        ),
        (
            "{\"schema\":1,\"op\":\"list\"}\r\n",
            json!({"process": "test", "name": "test", "pid": std::process::id(), "knobs": [
                {"name": "t.mode", "help": "a test", "values": {"one_of": ["off", "on", "panic"]},
                 "default": "off", "reach": "at_once", "value": "on"},
                {"name": "t.text", "help": "a test", "values": {"text": "any text"},
                 "default": "", "reach": "at_once", "value": ""},
            ]}),
        ),
    ] {
        assert_eq!(answered(&registry, request.as_bytes()), json!({"schema": 1, "ok": answer}));
    }
}

#[test]
fn what_is_not_a_request_gets_an_error_that_says_why() {
    let registry = registry();
    let deep = "[".repeat(50_000);
    let long = format!("{{\"schema\":1,\"op\":\"{}\"}}", "x".repeat(MAX_LINE));
    for (request, kind, message) in [
        ("", "malformed", "the request is not a JSON object: EOF"),
        ("\n", "malformed", "the request is not a JSON object: EOF"),
        ("GET / HTTP/1.1\r\n", "malformed", "not a JSON object"),
        ("[]", "malformed", "not a JSON object"),
        (&deep, "malformed", "not a JSON object"),
        (r#"{"schema":1}"#, "malformed", "missing field `op`"),
        (r#"{"op":"list"}"#, "malformed", "has no \"schema\""),
        (r#"{"schema":2,"op":"list","new":1}"#, "schema", "schema 2 is not spoken here"),
        (r#"{"schema":"1","op":"list"}"#, "schema", "schema \"1\" is not spoken here"),
        (
            r#"{"schema":1,"op":"drop"}"#,
            "malformed",
            "unknown variant `drop`, expected one of `list`",
        ),
        (r#"{"schema":1,"op":"get"}"#, "malformed", "missing field `knob`"),
        (r#"{"schema":1,"op":"get","knob":7}"#, "malformed", "integer `7`, expected a string"),
        (r#"{"schema":1,"op":"list","knob":"a"}"#, "malformed", "unknown field `knob`"),
        (r#"{"schema":1,"op":"list"} {}"#, "malformed", "trailing characters"),
        (r#"{"schema":1,"op":"set","knob":"t.mode"}"#, "malformed", "missing field `value`"),
        (r#"{"schema":1,"op":"get","knob":"t.x"}"#, "unknown_knob", "no knob \"t.x\""),
        (
            r#"{"schema":1,"op":"set","knob":"t.mode","value":"up"}"#,
            "bad_value",
            "knob t.mode does not take \"up\" (expected off, on or panic)",
        ),
        (
            r#"{"schema":1,"op":"set","knob":"t.mode","value":"panic"}"#,
            "internal",
            "test panicked while it answered",
        ),
        (
            r#"{"schema":1,"op":"set","knob":"t.mode","value":"on","hold":"x","force":true}"#,
            "malformed",
            "\"force\" and \"hold\" exclude each other",
        ),
        (
            r#"{"schema":1,"op":"set","knob":"t.mode","value":"on","hold":"x"}"#,
            "not_held",
            "the process knows no such hold",
        ),
        (
            r#"{"schema":1,"op":"hold","knob":"t.mode","hold":"x","holder":"","ms":1}"#,
            "bad_value",
            "expected 1 to 80 printable",
        ),
        (r#"{"schema":1,"op":"hold","knob":"t.mode"}"#, "malformed", "missing field `hold`"),
        (&long, "too_large", "longer than 65536 bytes"),
    ] {
        let answer = answered(&registry, request.as_bytes());
        assert_eq!(answer["error"]["kind"], kind, "{request:.60}: {answer}");
        let said = answer["error"]["message"].as_str().unwrap();
        assert!(said.contains(message), "{request:.60}: {said}");
    }
    assert_eq!(registry.get("t.mode").unwrap(), "off");
}

#[test]
fn a_line_may_be_exactly_as_long_as_the_limit() {
    let request = |value: &str| {
        let (knob, value) = ("t.text".to_owned(), value.to_owned());
        Request::Set { knob, value, hold: None, force: false, only_if: None }.to_line()
    };
    let room = MAX_LINE + 1 - request("").len();
    let line = request(&"x".repeat(room));
    assert_eq!(line.len(), MAX_LINE + 1);
    assert!(Request::parse(line.as_bytes()).is_ok());
    let error = Request::parse(request(&"x".repeat(room + 1)).as_bytes()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}

proptest! {
    #[test]
    fn any_bytes_get_exactly_one_reply(line in bytes()) {
        check_one_reply(&line)?;
    }

    #[test]
    fn almost_requests_get_exactly_one_reply(
        mut line in any_request().prop_map(|request| request.to_line().into_bytes()),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let at = at.index(line.len());
        if cut { line.truncate(at) } else { line[at] = byte }
        check_one_reply(&line)?;
    }

    #[test]
    fn a_request_reads_back(request in any_request()) {
        prop_assert_eq!(Request::parse(request.to_line().as_bytes()).unwrap(), request);
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let json = r#"[{}\[\]":,a-z0-9 \\-]{0,40}"#.prop_map(String::into_bytes);
    prop_oneof![prop::collection::vec(any::<u8>(), 0..300), json]
}

fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        Just(Request::List {}),
        Just(Request::Counters {}),
        ".*".prop_map(|knob| Request::Get { knob }),
        ("t\\.(mode|text)", "off|on|.*", any_hold(), any::<bool>(), any_hold()).prop_map(
            |(knob, value, hold, force, only_if)| Request::Set {
                knob,
                value,
                hold,
                force,
                only_if
            }
        ),
        ("t\\.(list|x)", ".*")
            .prop_map(|(request, with)| Request::Ask { request, with: with.into() }),
        ("t\\.(mode|text)", "x|.*", "me|.*", any::<u64>())
            .prop_map(|(knob, hold, holder, ms)| Request::Hold { knob, hold, holder, ms }),
        ("t\\.(mode|text)", "x|.*", any::<u64>()).prop_map(|(knob, hold, ms)| Request::Renew {
            knob,
            hold,
            ms
        }),
        ("t\\.(mode|text)", "x|.*", any::<bool>())
            .prop_map(|(knob, hold, keep)| Request::Release { knob, hold, keep }),
    ]
}

fn any_hold() -> impl Strategy<Value = Option<String>> {
    prop::option::of("x|.*")
}

fn check_one_reply(line: &[u8]) -> Result<(), TestCaseError> {
    let answer = reply(&registry(), line);
    prop_assert_eq!(answer.iter().filter(|&&byte| byte == b'\n').count(), 1);
    prop_assert_eq!(answer.last(), Some(&b'\n'));
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    prop_assert_eq!(&answer["schema"], 1);
    prop_assert!(answer["ok"].is_object() != answer["error"].is_object(), "{}", answer);
    Ok(())
}

fn answered(registry: &Registry, line: &[u8]) -> Value {
    serde_json::from_slice(&reply(registry, line)).unwrap()
}

fn registry() -> Registry {
    let registry = Registry::new("test");
    let value = Arc::new(Mutex::new("off"));
    let shown = value.clone();
    let get = move || Ok::<_, Infallible>(*shown.lock().unwrap());
    let set = move |new| {
        // Reset first, so that the test of a panic sees what it left.
        *value.lock().unwrap() = "off";
        assert_ne!(new, "panic");
        *value.lock().unwrap() = new;
        Ok(())
    };
    let modes = &["off", "on", "panic"];
    registry.register(Knob::choice("t.mode", "a test", modes, "off", get, set)).unwrap();
    let value = Arc::new(Mutex::new(String::new()));
    let shown = value.clone();
    let get = move || Ok::<_, Infallible>(shown.lock().unwrap().clone());
    let set = move |new: String| {
        *value.lock().unwrap() = new;
        Ok(())
    };
    registry.register(Knob::parsed("t.text", "a test", "any text", "", get, set)).unwrap();
    let read = || Ok::<_, Infallible>([u64::MAX]);
    registry.meters(MeterKind::Counter, "t", [("bytes", "bytes", "sent")], read).unwrap();
    registry
}

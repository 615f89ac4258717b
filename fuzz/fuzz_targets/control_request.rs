//! Any bytes on the control socket get exactly one reply, and a request that is read prints as one
//! that reads the same.

#![no_main]

use std::sync::{LazyLock, Mutex};

use knobs::{Knob, Registry, Request, Values, reply};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

static CPUS: Mutex<String> = Mutex::new(String::new());

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let registry = Registry::new("fuzz");
    let engines = Values::one_of(["copy", "splice"]);
    let engine = Knob::new("f.engine", "a list", engines, "copy", || "copy".into(), |_| Ok(()));
    let current = || CPUS.lock().unwrap().clone();
    let cpus = Knob::new("f.cpus", "a text", Values::text("any text"), "", current, |value| {
        *CPUS.lock().unwrap() = value.to_owned();
        Ok(())
    });
    registry.register(engine).unwrap();
    registry.register(cpus).unwrap();
    registry.counter("f.bytes", "bytes", "sent", || u64::MAX).unwrap();
    registry
});

fuzz_target!(|line: &[u8]| {
    let answer = reply(&REGISTRY, line);
    assert_eq!(answer.iter().position(|&byte| byte == b'\n'), Some(answer.len() - 1));
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["schema"], 1);
    assert!(answer["ok"].is_object() != answer["error"].is_object());
    assert_ne!(answer["error"]["kind"], "internal");
    // Only as sent: printing may need more escapes than the text had, and so pass the limit.
    if let (Ok(request), true) = (Request::parse(line), line.len() < knobs::MAX_LINE / 8) {
        assert_eq!(Request::parse(request.to_line().as_bytes()).unwrap(), request);
    }
});

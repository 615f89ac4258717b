//! Any bytes on the control socket get exactly one reply, and a request that is read prints as one
//! that reads the same.

#![no_main]

use std::convert::Infallible;
use std::sync::{LazyLock, Mutex};

use knobs::{Knob, MeterKind, Registry, Request, reply};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

static CPUS: Mutex<String> = Mutex::new(String::new());

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let registry = Registry::new("fuzz");
    let (get, set) = (|| Ok::<_, Infallible>("copy"), |_| Ok(()));
    let engine = Knob::choice("f.engine", "a list", &["copy", "splice"], "copy", get, set);
    let get = || Ok::<_, Infallible>(CPUS.lock().unwrap().clone());
    let cpus = Knob::parsed("f.cpus", "a text", "any text", "", get, |value: String| {
        *CPUS.lock().unwrap() = value;
        Ok(())
    });
    registry.register(engine).unwrap();
    registry.register(cpus).unwrap();
    let read = || Ok::<_, Infallible>([u64::MAX]);
    registry.meters(MeterKind::Counter, "f", [("bytes", "bytes", "sent")], read).unwrap();
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

//! Several relays in one process: each has its part of the open files, its knobs, and its log lines.

mod common;

use std::fmt;
use std::sync::{Arc, Mutex};

use cachelane_relay::{Config, Engine, ErrorKind, Relay, register, register_service};
use common::*;
use knobs::Registry;
use lanes::LaneMap;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[test]
fn relays_share_the_open_files_of_their_process() {
    with_files("relays_share_the_open_files_of_their_process", 500, || {
        let (_listener, addr) = backend();
        let wanted = |n| Config { max_connections: n, ..config(Engine::Auto, &[addr]) };
        let one = Relay::start(wanted(None)).unwrap();
        let all = one.max_connections();
        let other = Relay::start(wanted(None)).unwrap();
        let each = one.max_connections();
        assert!(each.abs_diff(other.max_connections()) <= 1 && 2 * each < all, "{each}, {all}");
        let three = Relay::start(wanted(Some(10))).unwrap();
        assert_eq!(three.max_connections(), 10);
        assert!(one.max_connections() < each);
        let error = Relay::start(wanted(Some(all))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileLimit);
        for part in ["other relays of this process", "limit is 500", "--max-connections"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        drop(three);
        assert_eq!(one.max_connections(), each);
        drop(other);
        assert_eq!(one.max_connections(), all);
    });
}

#[test]
fn as_many_connections_fit_as_all_relays_together_promise() {
    with_files("as_many_connections_fit_as_all_relays_together_promise", 900, || {
        let rigs = [Engine::Splice, Engine::Copy].map(Rig::new);
        // Both ends of each connection are in this process too.
        let few = |rig: &Rig| rig.relay.max_connections() / 2;
        let pairs: Vec<_> = rigs.iter().flat_map(|rig| (0..few(rig)).map(|_| rig.pair())).collect();
        pairs.iter().for_each(converse);
        assert!(rigs.iter().all(|rig| rig.relay.stats().no_files == 0));
    });
}

#[test]
fn a_client_that_waits_is_served_when_another_relay_stops() {
    with_files("a_client_that_waits_is_served_when_another_relay_stops", 400, || {
        let other = Rig::new(Engine::Copy);
        let crowd: Vec<_> = (0..3)
            .map(|_| Rig::with(Engine::Copy, |config| config.max_connections = Some(20)))
            .collect();
        let rig = Rig::new(Engine::Copy);
        let most = rig.relay.max_connections();
        assert!(most < 30, "{most}: too many for this test");
        let pairs: Vec<_> = (0..most).map(|_| rig.pair()).collect();
        let late = connect(rig.relay.addrs()[0]);
        await_that("the limit is reached", || rig.relay.stats().limit_reached > 0);
        drop(crowd);
        assert!(rig.relay.max_connections() > most);
        rig.relay.tend().unwrap();
        converse(&Pair { client: late, backend: accept(&rig.listener) });
        drop((pairs, other));
    });
}

#[test]
fn knobs_and_counters_have_the_name_of_their_service() {
    let map = || LaneMap::detect().unwrap();
    let registry = Registry::new("relay");
    let rigs = [Engine::Copy, Engine::Auto].map(Rig::new);
    part(rigs[0].pair());
    let [web, mail] = rigs.map(|rig| Arc::new(rig.relay));
    register_service("web", &web, map(), &registry).unwrap();
    register_service("mail", &mail, map(), &registry).unwrap();
    registry.set("relay.web.engine", "splice").unwrap();
    assert_eq!([web.engine(), mail.engine()], [Engine::Splice, Engine::Auto]);
    let names: Vec<_> = registry.list().into_iter().map(|knob| knob.name).collect();
    let knobs = ["mail", "web"].map(|service| {
        ["backends", "cpus", "engine"].map(|knob| format!("relay.{service}.{knob}"))
    });
    assert_eq!(names, knobs.concat());
    let readings = registry.readings();
    let exposures = registry.list().into_iter().filter_map(|knob| knob.exposure);
    for name in exposures.flat_map(|exposure| [exposure.under, exposure.of]) {
        assert!(readings.iter().any(|reading| reading.name == name), "{name}");
    }
    let accepted = ["web", "mail"].map(|service| {
        let name = format!("relay.{service}.accepted");
        readings.iter().find(|reading| reading.name == name).and_then(|one| one.value.value())
    });
    assert_eq!(accepted, [Some(&1), Some(&0)]);
    let again = register_service("web", &web, map(), &registry).unwrap_err();
    assert_eq!(again.kind(), knobs::ErrorKind::Duplicate);
    let bad = register_service("Web-1", &web, map(), &registry).unwrap_err();
    assert_eq!(bad.kind(), knobs::ErrorKind::BadName);
    // One that is alone keeps its name.
    register(&mail, map(), &registry).unwrap();
    assert_eq!(registry.get("relay.engine").unwrap(), "auto");
}

/// What is logged at [`Level::INFO`] and above.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn the_repeated_line_of_one_relay_silences_no_other() {
    with_files("the_repeated_line_of_one_relay_silences_no_other", 1000, || {
        let log = Log::default();
        tracing::subscriber::set_global_default(log.clone()).unwrap();
        let deny = |config: &mut Config| config.deny = vec!["127.0.0.1".parse().unwrap()];
        let rigs = [(); 2].map(|()| Rig::with(Engine::Copy, deny));
        for rig in &rigs {
            (0..5).for_each(|_| expect_refusal(rig.relay.addrs()[0]));
        }
        await_that("all are counted", || rigs.iter().all(|rig| rig.relay.stats().denied == 5));
        let lines = log.0.lock().unwrap().clone();
        let refused = lines.iter().filter(|line| line.contains("do not let it in")).count();
        // One each, and another where five seconds have passed meanwhile.
        assert!((2..=4).contains(&refused), "{lines:?}");
    });
}

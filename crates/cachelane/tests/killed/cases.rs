//! The commands that change anything, each with what it needs and what tells that it has started.

use std::collections::HashMap;
use std::net::TcpListener;
use std::time::Duration;

use serde_json::Value;

use crate::common::clients::echo;
use crate::common::daemon::Daemon;
use crate::common::steer::lane_per_cpu;
use crate::stage::{Stage, TAKEN};
use crate::traffic::{Traffic, tcp, unix};

/// A command.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// What is there before it.
    pub(crate) begin: fn(&Stage) -> Begun,
    pub(crate) started: Started,
    /// Whether it has BPF programs as long as it runs.
    pub(crate) has_programs: bool,
    pub(crate) restored: Restored,
}

/// What tells that a process has started.
pub(crate) enum Started {
    /// So many lines of its log with these words.
    Says(&'static str, usize),
    Holds(fn(&Stage) -> bool),
    /// It ends by itself, and takes about so long.
    Ends(Duration),
}

/// Who puts back what it had set, or takes back what it had.
#[derive(Clone, Copy)]
pub(crate) enum Restored {
    /// It sets nothing.
    Nothing,
    /// `cachelane undo`, this file; what it is before, and what somebody else makes of it.
    Undo { file: &'static str, before: &'static str, other: &'static str },
    /// Another process, after a while; whether it has.
    Process(fn(&Stage) -> bool),
}

/// What there is before the command.
pub(crate) struct Begun {
    pub(crate) args: Vec<String>,
    /// A command that joins it once it has started, and ends with it.
    pub(crate) joins: Option<&'static str>,
    /// Besides the kernel's own.
    pub(crate) traffic: Vec<Traffic>,
    /// Processes that stay.
    pub(crate) beside: Vec<Daemon>,
}

impl Begun {
    fn line(line: &str) -> Begun {
        let args = line.split(' ').map(Into::into).collect();
        Begun { args, joins: None, traffic: Vec::new(), beside: Vec::new() }
    }
}

const TTL: &str = "/proc/sys/net/ipv4/ip_default_ttl";
const RPS: &str = "/sys/class/net/eth1/queues/rx-0/rps_cpus";
/// A trial that goes on until somebody ends it.
const LONG: &str = "--reach at-once --for 1h --window 20ms --settle 0s --no-guards --better higher";

/// All that can be killed soon after it has started.
pub(crate) const CASES: [Case; 16] = [
    relay("relay, copy", |stage| relayed(stage, "--engine copy")),
    relay("relay, splice", |stage| relayed(stage, "--engine splice")),
    Case {
        has_programs: true,
        ..relay("relay, sockmap", |stage| relayed(stage, "--engine sockmap"))
    },
    relay("relay, unix", |stage| {
        let to = stage.within(echo);
        let clients = stage.within(|| Traffic::clients(|| unix("/run/relay.sock")));
        let begun = Begun::line(&format!("relay --listen unix:/run/relay.sock --to {to}"));
        Begun { traffic: vec![clients], ..begun }
    }),
    programs("bridge", |_| Begun::line("bridge br0"), "ports accelerated"),
    programs("steer", |_| Begun::line("steer eth0 --force"), "steering flows of"),
    programs("lend", |_| Begun { joins: Some("borrow /run/eth0.lend"), ..lend() }, "lending"),
    Case {
        name: "borrow",
        begin: |stage| {
            let lender = started(stage, &lend().args, "lending");
            // Few, so that the next one finds enough left while this one is still leaving.
            let line = "borrow /run/eth0.lend --worker 2 --quota 64";
            Begun { beside: vec![lender], ..Begun::line(line) }
        },
        started: Started::Says(" lends: ", 1),
        has_programs: false,
        restored: Restored::Process(|stage| {
            let counters = counters(stage);
            ["lend.borrowers", "lend.on_loan"].iter().all(|name| counters[*name] == 0)
        }),
    },
    Case {
        // It receives nothing.
        has_programs: false,
        ..programs(
            "xsk send",
            // To a port that nobody has.
            |_| Begun::line("xsk send eth0 --dst-mac 02:63:6c:02:00:01 --rate 5000"),
            "sending",
        )
    },
    programs("xsk drop", |_| xsk("drop eth0"), "receiving"),
    programs("xsk forward", |_| xsk("forward eth0"), "forwarding"),
    Case {
        name: "trial of a sysctl",
        begin: |_| {
            let subject = "sysctl:net.ipv4.ip_default_ttl --arms 70,71";
            Begun::line(&format!("trial {subject} {LONG} -- cat {TTL}"))
        },
        started: Started::Holds(|stage| is(stage, TTL, "71")),
        has_programs: false,
        restored: Restored::Undo { file: TTL, before: "64", other: "99" },
    },
    Case {
        name: "trial of a file",
        begin: |_| {
            let subject = format!("file:{RPS} --arms 1,2");
            Begun::line(&format!("trial {subject} {LONG} -- cat {TTL}"))
        },
        started: Started::Holds(|stage| is(stage, RPS, "2")),
        has_programs: false,
        restored: Restored::Undo { file: RPS, before: "0", other: "3" },
    },
    knob("trial of a knob", |stage| {
        let subject = "relay.engine --arms copy,splice";
        beside_a_relay(stage, &format!("trial {subject} {LONG} -- cat {TTL}"))
    }),
    knob("knob set for a while", |stage| {
        beside_a_relay(stage, "knob set relay.engine splice --for 10m")
    }),
    Case {
        name: "up",
        begin: up,
        started: Started::Says(": runs", 4),
        has_programs: false,
        restored: Restored::Nothing,
    },
];

/// All that takes a while, and ends by itself.
pub(crate) const LONG_ONES: [Case; 4] = [
    ends("doctor", 3, |_| {
        let mut begun = Begun::line("doctor --watch 2s --json --lanes");
        begun.args.push(lane_per_cpu());
        begun
    }),
    ends("demo", 9, |_| Begun::line("demo --quick --no-html")),
    ends("bench bridge", 6, |_| Begun::line("bench bridge --rounds 1 --window 100ms")),
    ends("bench frames", 6, |_| Begun::line("bench frames --rounds 1 --window 100ms")),
];

const fn relay(name: &'static str, begin: fn(&Stage) -> Begun) -> Case {
    let started = Started::Says("relaying", 1);
    Case { name, begin, started, has_programs: false, restored: Restored::Nothing }
}

const fn programs(name: &'static str, begin: fn(&Stage) -> Begun, says: &'static str) -> Case {
    let started = Started::Says(says, 1);
    Case { name, begin, started, has_programs: true, restored: Restored::Nothing }
}

const fn knob(name: &'static str, begin: fn(&Stage) -> Begun) -> Case {
    let started = Started::Holds(|stage| stage.says(&["knob", "get", "relay.engine"]) == "splice");
    let restored = Restored::Process(|stage| {
        let said: Value =
            serde_json::from_str(&stage.says(&["knob", "list", "--json"])).expect("JSON");
        let knobs = said["processes"][0]["knobs"].as_array().expect("knobs").clone();
        let engine = knobs.iter().find(|knob| knob["name"] == "relay.engine").expect("a knob");
        engine["value"] == "auto" && engine["held"].is_null()
    });
    Case { name, begin, started, has_programs: false, restored }
}

const fn ends(name: &'static str, seconds: u64, begin: fn(&Stage) -> Begun) -> Case {
    let started = Started::Ends(Duration::from_secs(seconds));
    Case { name, begin, started, has_programs: false, restored: Restored::Nothing }
}

/// Whether a file of the host's says this.
pub(crate) fn is(stage: &Stage, file: &str, value: &str) -> bool {
    stage.within(|| std::fs::read_to_string(file)).is_ok_and(|text| text.trim() == value)
}

/// What the one process that runs counts.
fn counters(stage: &Stage) -> HashMap<String, u64> {
    let said = stage.says(&["knob", "list", "--counters", "--json"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let all = said["processes"][0]["counters"].as_array().expect("counters").clone();
    let one = |it: &Value| Some((it["name"].as_str()?.to_owned(), it["value"].as_u64()?));
    all.iter().filter_map(one).collect()
}

fn relayed(stage: &Stage, more: &str) -> Begun {
    let to = stage.within(echo);
    let clients = stage.within(|| Traffic::clients(|| tcp(7000)));
    let begun = Begun::line(&format!("relay --listen 127.0.0.1:7000 --to {to} {more}"));
    Begun { traffic: vec![clients], ..begun }
}

fn beside_a_relay(stage: &Stage, line: &str) -> Begun {
    let Begun { args, traffic, .. } = relayed(stage, "--engine auto");
    let relay = started(stage, &args, "relaying");
    Begun { beside: vec![relay], traffic, ..Begun::line(line) }
}

fn started(stage: &Stage, args: &[String], says: &str) -> Daemon {
    let process = stage.spawn(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(process.says(says), "{}", process.log());
    process
}

fn lend() -> Begun {
    Begun::line(&format!("lend eth0 --socket /run/eth0.lend --udp-port {TAKEN} --frames 4096"))
}

fn xsk(what: &str) -> Begun {
    Begun::line(&format!("xsk {what} --udp-port {TAKEN}"))
}

fn up(stage: &Stage) -> Begun {
    let backend = stage.within(|| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let to = backend.local_addr().expect("an address");
    // Nobody connects.
    drop(backend);
    let config = format!(
        "[bridge.all]\nnames = [\"br*\"]\n[steer.in]\ninterface = \"eth1\"\nforce = true\n\
         [lend.dns]\ninterface = \"eth0\"\nsocket = \"/run/eth0.lend\"\nudp-port = {TAKEN}\n\
         frames = 4096\n[relay.web]\nlisten = \"127.0.0.1:7000\"\nto = \"{to}\"\n"
    );
    std::fs::write(stage.place.path().join("up.toml"), config).expect("a file");
    Begun::line("up -c up.toml")
}

//! Mechanisms under real traffic, each with a knob whose effect a bench has shown, and what
//! `cachelane trial` says of it.

use std::fmt;
use std::time::Duration;

use lab::usage::SystemCpu;
use serde_json::Value;

use crate::common::{ends_within, text};
use crate::setups::{self, Stage};

/// The exit status of a trial without a verdict.
const INCONCLUSIVE: i32 = 5;
/// How much longer than its windows a trial may take, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// A knob whose effect is known.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    subject: &'static str,
    /// Two values; the first is the baseline.
    arms: &'static str,
    truth: Truth,
    needs: Needs,
    /// Milliseconds of a window, and of the time before it.
    window: [u64; 2],
    set_up: fn() -> Stage,
}

/// What a trial has to say of the second arm, if it says anything.
#[derive(Clone, Copy)]
enum Truth {
    Better,
    Worse,
    /// The same to within this share: a verdict is wrong whose whole interval lies outside.
    Within(f64),
}

/// What it takes to see that.
#[derive(Clone, Copy, PartialEq)]
enum Needs {
    /// Nothing: the effect is so large, or of what is counted and not timed, that it shows beside
    /// any other programs.
    Nothing,
    /// That few other programs run; beside many it may stay open.
    Calm,
    /// That no other programs run: it is of the CPU time of the whole machine, theirs included.
    Quiet,
}

/// What a trial said.
pub(crate) struct Said {
    verdict: String,
    ratio: Option<f64>,
    interval: Option<[f64; 2]>,
    note: String,
}

/// All rows: ten knobs, and a bench that shows what each does.
pub(crate) const ROWS: [Row; 10] = [
    // bench relay --only bulk: relay-splice / relay-copy, bytes by CPU time, 1.25 [1.07, 1.50].
    Row {
        name: "relay.engine splice, bulk",
        subject: "relay.engine",
        arms: "copy,splice",
        truth: Truth::Better,
        needs: Needs::Calm,
        window: [500, 250],
        set_up: || setups::relay_bulk(1 << 20, false),
    },
    // bench relay --only engines: 1024 B writes, relay-splice / relay-copy, 0.91 [0.83, 0.94] on one
    // host and 0.6 [0.24, 1.23] on another: which is better hangs on the host, and neither by much.
    Row {
        name: "relay.engine splice, small writes",
        subject: "relay.engine",
        arms: "copy,splice",
        truth: Truth::Within(0.25),
        needs: Needs::Calm,
        window: [500, 250],
        set_up: || setups::relay_bulk(1 << 10, false),
    },
    // bench relay --only bulk: relay-sockmap / relay-copy, 0.69 [0.63, 0.73], of the whole machine's
    // CPU time: the process itself has nothing to do.
    Row {
        name: "relay.engine sockmap, bulk",
        subject: "relay.engine",
        arms: "copy,sockmap",
        truth: Truth::Worse,
        needs: Needs::Quiet,
        window: [500, 250],
        set_up: || setups::relay_bulk(64 << 10, true),
    },
    // bench relay --only place: forwarding on chosen cpus, 1.000: all of it moves to CPU 1.
    Row {
        name: "relay.cpus, CPU time of CPU 1",
        subject: "relay.cpus",
        arms: "0,1",
        truth: Truth::Better,
        needs: Needs::Quiet,
        window: [500, 100],
        set_up: setups::relay_cpus,
    },
    // bench bridge --only pps: cachelane / linux bridge, 1.80 [1.63, 2.05].
    Row {
        name: "bridge.fastpath, frames",
        subject: "bridge.fastpath",
        arms: "off,on",
        truth: Truth::Better,
        needs: Needs::Nothing,
        window: [300, 100],
        set_up: setups::bridge,
    },
    // bench steer --only records: llc_affinity on / off, 0.000.
    Row {
        name: "steer.llc_affinity, records",
        subject: "steer.llc_affinity",
        arms: "off,on",
        truth: Truth::Better,
        needs: Needs::Nothing,
        window: [200, 50],
        set_up: setups::steer,
    },
    // bench lend --only idle: worker idle points, packets over a veth: counters - ledger of each
    // borrower, 0.4 [-2.1, 2.7].
    Row {
        name: "lend.autorelease, CPU time",
        subject: "lend.autorelease",
        arms: "off,on",
        truth: Truth::Within(0.1),
        needs: Needs::Calm,
        window: [500, 100],
        set_up: setups::lend,
    },
    // bench frames --only xsk: xsk forward, auto / recycle, 1.002 [0.987, 1.019].
    Row {
        name: "frames.alien_free, CPU time",
        subject: "frames.alien_free",
        arms: "auto,recycle",
        truth: Truth::Within(0.05),
        needs: Needs::Calm,
        window: [500, 100],
        set_up: setups::forward,
    },
    // By definition: a router that does not forward.
    Row {
        name: "ip_forward, packets",
        subject: "sysctl:net.ipv4.ip_forward",
        arms: "1,0",
        truth: Truth::Worse,
        needs: Needs::Nothing,
        window: [200, 50],
        set_up: setups::router,
    },
    // By definition: the rate of messages of which there is none.
    Row {
        name: "icmp_ratelimit, exchanges",
        subject: "sysctl:net.ipv4.icmp_ratelimit",
        arms: "1000,2000",
        truth: Truth::Within(0.05),
        needs: Needs::Calm,
        window: [300, 50],
        set_up: setups::exchanges,
    },
];

impl Row {
    /// Whether what it measures means something now: says so if not.
    pub(crate) fn can_be_seen(&self) -> bool {
        let can = self.needs != Needs::Quiet || !is_busy();
        if !can {
            eprintln!("left out: {}: other programs keep the CPUs busy", self.name);
        }
        can
    }

    /// Sets it up and tries it.
    pub(crate) fn try_it(&self, blocks: u32) -> Said {
        let stage = (self.set_up)();
        let [window, settle] = self.window;
        let times = [window, settle].map(|time| format!("{time}ms"));
        let blocks = blocks.to_string();
        let mut args = vec!["trial", self.subject, "--arms", self.arms, "--json", "--no-guards"];
        args.extend(["--measure", &stage.measure, "--reach", "at-once", "--seed", "1"]);
        args.extend(["--blocks", &blocks, "--window", &times[0], "--settle", &times[1]]);
        args.extend(stage.pid.iter().flat_map(|pid| ["--pid", pid]));
        let mut command = stage.scene.command(&args);
        let child = stage.host.run(move || command.spawn()).expect("the host").expect("it starts");
        let windows: u64 = 4 * blocks.parse::<u64>().expect("a number") * (window + settle);
        let output = ends_within(child, Duration::from_millis(windows) + PATIENCE);
        let fine = output.status.success() || output.status.code() == Some(INCONCLUSIVE);
        assert!(fine, "{}: {}: {}", self.name, output.status, text(&output.stderr));
        let record: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let judged = record["judged"].as_array().expect("a list");
        let is_first = |one: &&Value| one["measure"] == 0 && one["arm"] == 1;
        Said::read(judged.iter().find(is_first).expect("the second arm by the first measure"))
    }

    /// Whether what was said is not the truth.
    pub(crate) fn is_wrong(&self, said: &Said) -> bool {
        match self.truth {
            Truth::Better => ["worse", "no_difference"].contains(&&*said.verdict),
            Truth::Worse => ["better", "no_difference"].contains(&&*said.verdict),
            Truth::Within(share) => {
                let is_outside = |[low, high]: [f64; 2]| low > 1.0 + share || high < 1.0 - share;
                said.is_difference() && said.interval.is_none_or(is_outside)
            }
        }
    }

    /// Whether it is said, and the truth.
    pub(crate) fn is_right(&self, said: &Said) -> bool {
        !self.is_wrong(said) && !["inconclusive", "withheld"].contains(&&*said.verdict)
    }

    /// Whether it has to be said on any machine.
    pub(crate) fn is_certain(&self) -> bool {
        self.needs == Needs::Nothing
    }
}

impl Said {
    fn read(judged: &Value) -> Said {
        let bounds = ["low", "high"].map(|bound| judged["interval"][bound].as_f64());
        Said {
            verdict: judged["verdict"].as_str().expect("a verdict").to_owned(),
            ratio: judged["ratio"].as_f64(),
            interval: bounds[0].zip(bounds[1]).map(|(low, high)| [low, high]),
            note: judged["note"].as_str().unwrap_or_default().to_owned(),
        }
    }

    fn is_difference(&self) -> bool {
        ["better", "worse"].contains(&&*self.verdict)
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
        let [low, high] = [0, 1].map(|i| number(self.interval.map(|interval| interval[i])));
        write!(f, "{} {} [{low}, {high}] {}", self.verdict, number(self.ratio), self.note)
    }
}

/// Whether other programs use more than a quarter of the CPUs.
pub(crate) fn is_busy() -> bool {
    const LOOK: Duration = Duration::from_millis(500);
    let before = SystemCpu::now().expect("/proc/stat");
    std::thread::sleep(LOOK);
    let seen = SystemCpu::now().expect("/proc/stat").since(&before);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    seen.busy.as_secs_f64() > 0.25 * seen.elapsed.as_secs_f64() * cpus as f64
}

//! Writes two pages of made-up traffic, to look at: `cargo run --example sample_report -- DIR`.

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use cachelane_trial::bench::{Bar, BenchOutput, Case, Host, RatioOut};
use cachelane_trial::report::{Page, Row};
use cachelane_trial::{Better, BoxError, Measure, Plan, Subject, paired_ratio, run};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// A level that drifts, and an arm that changes it.
struct Traffic {
    rng: Xoshiro256PlusPlus,
    measure: Measure,
    level: f64,
    effect: f64,
    arm: usize,
}

impl Subject for Traffic {
    fn measures(&self) -> Vec<Measure> {
        vec![self.measure.clone()]
    }
    fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
        self.arm = arm;
        Ok(())
    }
    fn settle(&mut self, _: Duration) {}
    fn measure(&mut self, _: Duration) -> Result<Vec<f64>, BoxError> {
        self.level *= 1.0 + 0.02 * (self.rng.random::<f64>() - 0.48);
        let effect = if self.arm == 1 { self.effect } else { 1.0 };
        Ok(vec![self.level * effect * (1.0 + 0.08 * (self.rng.random::<f64>() - 0.5))])
    }
}

fn row(mechanism: &str, measure: Measure, level: f64, effect: f64, blocks: u32) -> Row {
    let rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let plan = Plan::builder(["off", "on"]).blocks(blocks).seed(7).build().expect("a valid plan");
    let mut subject = Traffic { rng, measure, level, effect, arm: 0 };
    let outcome = run(&plan, &mut subject, &mut ()).expect("made-up traffic does not fail");
    Row::from_outcome(mechanism, &outcome, 1, 0).expect("a complete trial")
}

fn trials() -> Page {
    let measure = Measure::new;
    Page {
        title: "cachelane demo".into(),
        lead: "Five mechanisms, each off and on by turns under the same traffic. \
               These figures are made up, to show the page."
            .into(),
        host: Some(Host::detect()),
        rows: vec![
            row("relay", measure("throughput", "B/s", Better::Higher), 9.1e8, 2.6, 12),
            row("bridge", measure("packets", "pps", Better::Higher), 8.3e5, 1.4, 44),
            row("frames", measure("time per frame", "ns", Better::Lower), 6.2, 0.93, 20),
            row("lend", measure("busy CPU", "%", Better::Lower), 42.0, 1.0, 44),
            row("steer", measure("context switches", "/s", Better::Lower), 23_100.0, 1.004, 6),
        ],
        notes: vec!["steer ran for 6 blocks only: the interface was busy.".into()],
        absent: vec!["xsk: no interface with AF_XDP zero-copy.".into()],
        command: "cachelane demo --seed 7 --html cachelane-demo.html".into(),
        ..Page::default()
    }
}

fn bench() -> Page {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
    let mut runs = |level: f64| -> Vec<f64> {
        (0..10).map(|_| level * (0.94 + 0.12 * rng.random::<f64>())).collect()
    };
    let (relay, haproxy, nginx) = (runs(2.45e9), runs(9.8e8), runs(2.3e9));
    let ratio = |name: &str, a, b| RatioOut::new(name, &paired_ratio(a, b).expect("paired runs"));
    let mut output = BenchOutput::new("relay-throughput", Host::detect());
    output.ratios = vec![
        ratio("relay / HAProxy", &haproxy, &relay).with_bar(Bar::AtLeast(2.0)),
        ratio("relay / nginx stream, 256 KiB buffer", &nginx, &relay).with_bar(Bar::AtLeast(1.25)),
        ratio("nginx stream / HAProxy", &haproxy, &nginx),
    ];
    output.cases = vec![
        Case::new("relay, auto", "B/s", relay),
        Case::new("HAProxy", "B/s", haproxy),
        Case::new("nginx stream, 256 KiB buffer", "B/s", nginx),
        Case::new("relay, auto", "s", runs(1.2e-4)),
        Case::new("HAProxy", "s", runs(1.6e-4)),
    ];
    output.absent = vec!["socat: not installed".into()];
    print!("{}", output.to_table(80, false));
    Page::from_bench(&output, "cachelane bench relay-throughput --html relay.html")
}

fn main() -> std::io::Result<()> {
    let dir = PathBuf::from(env::args_os().nth(1).unwrap_or_else(|| ".".into()));
    let trials = trials();
    println!("{}", trials.to_table(80, false));
    fs::write(dir.join("trials.html"), trials.render())?;
    fs::write(dir.join("bench.html"), bench().render())
}

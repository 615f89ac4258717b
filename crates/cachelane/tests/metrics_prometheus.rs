//! `cachelane metrics` as Prometheus and its tools read it, and what is shipped for them: alerts, a
//! dashboard, and the page that has every family.
//!
//! Prometheus and promtool are peers, as HAProxy is: `make peers` installs them.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::metrics::{
    Running, SOON, Scene, client, echo, exchange, families, get, scrape, series, value,
};
use common::{ends_within, text, xsk};
use lab::BridgeOptions;
use lab::testing::{comes_true, root};
use serde_json::Value;

/// Where what is shipped is.
fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(shipped(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Runs promtool with this on its stdin.
fn promtool(args: &[&str], input: &str) -> Output {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(shipped("packaging/prometheus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| absent("promtool", &error));
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = ends_within(child, SOON);
    writer.join().expect("no panic").expect("it reads");
    output
}

fn absent(program: &str, error: &std::io::Error) -> ! {
    panic!("{program} cannot be run: {error} (Debian package prometheus: make peers)")
}

/// The words of an expression that are names of metrics.
fn names(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_name = |word: &&str| word.starts_with("cachelane_") || word.starts_with("process_");
    words.filter(is_name).map(str::to_owned).collect()
}

/// Every expression of the dashboard: of its panels, and of its variables.
fn dashboard() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("packaging/prometheus/dashboard.json"))
        .expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let all: Vec<_> = targets.map(|one| one["expr"].as_str().expect("text").to_owned()).collect();
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    assert!(all.len() > 80, "{}", all.len());
    for name in ["datasource", "instance", "name"] {
        assert!(variables.iter().any(|variable| variable["name"] == name), "no variable {name}");
    }
    let queries = variables.iter().filter_map(|one| one["query"]["query"].as_str());
    all.into_iter().chain(queries.map(str::to_owned)).collect()
}

/// Each alert of the rules, and its lines.
fn alerts() -> BTreeMap<String, String> {
    let rules = read("packaging/prometheus/alerts.yml");
    let all = rules.split("      - alert: ").skip(1);
    all.map(|alert| {
        let (name, rest) = alert.split_once('\n').expect("more lines");
        (name.to_owned(), rest.to_owned())
    })
    .collect()
}

/// The families that docs/metrics.md has a line for, and their types.
fn documented() -> BTreeMap<String, String> {
    let page = read("docs/metrics.md");
    let lines = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let families = lines.filter(|(name, _)| names(name).contains(*name));
    families
        .map(|(name, rest)| (name.to_owned(), rest.split(" | ").next().unwrap_or(rest).to_owned()))
        .collect()
}

/// Families as the text says them, and their types.
fn typed(text: &str) -> BTreeMap<String, String> {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    types.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect()
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics_of_a_relay_with_traffic() {
    let scene = Scene::new();
    let relay = scene.relay(echo(), &["--to", "127.0.0.1:9", "--retry-after", "1h"]);
    (0..3).for_each(|_| exchange(relay.addr(), 10_000));
    let metrics = scene.metrics();
    let page = get(metrics.addr(), "/metrics");
    let output = promtool(&["check", "metrics"], page.text());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let bad = promtool(&["check", "metrics"], "# TYPE a_total gauge\na_total 1\n");
    assert!(!bad.status.success(), "it finds what is wrong: {bad:?}");
    let documented = documented();
    for (family, kind) in typed(page.text()) {
        assert_eq!(documented.get(&family), Some(&kind), "{family} in docs/metrics.md");
    }
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests_of_which_each_has_one() {
    for args in [&["check", "rules", "alerts.yml"][..], &["test", "rules", "alerts_test.yml"]] {
        let output = promtool(args, "");
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert!(text(&output.stdout).contains("SUCCESS"), "{args:?}: {output:?}");
    }
    let tests = read("packaging/prometheus/alerts_test.yml");
    let page = read("docs/metrics.md");
    let alerts = alerts();
    assert!(alerts.len() > 15, "{}", alerts.len());
    for (name, lines) in alerts {
        assert!(tests.contains(&format!("  - name: {name}\n")), "{name} has no test");
        assert!(page.contains(&format!("\n### {name}\n")), "{name} has no section");
        let runbook = format!("runbook: 'docs/metrics.md#{}'", name.to_lowercase());
        for part in [&runbook, "summary: ", "description: ", "severity: "] {
            assert!(lines.contains(part), "{name}: {part}");
        }
    }
}

/// Prometheus with a configuration of its own, while it runs.
struct Prometheus {
    _running: Running,
    addr: SocketAddr,
}

impl Prometheus {
    fn start(scene: &Scene, target: SocketAddr) -> Prometheus {
        let dir = scene.0.path();
        let rules = shipped("packaging/prometheus/alerts.yml");
        let config = format!(
            "global:\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  evaluation_interval: 1s\n\
             rule_files: ['{}']\nscrape_configs:\n  - job_name: cachelane\n    static_configs:\n      \
             - targets: ['{target}']\n",
            rules.display()
        );
        let file = dir.join("prometheus.yml");
        fs::write(&file, config).expect("a file");
        let port = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = port.local_addr().expect("an address");
        drop(port);
        let mut command = scene.0.wrapped("prometheus".as_ref(), &[]);
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("data").display()));
        command.arg(format!("--web.listen-address={addr}"));
        if let Err(error) = Command::new("prometheus").arg("--version").output() {
            absent("prometheus", &error);
        }
        let mut running = Running::start(&mut command, "Server is ready to receive web requests");
        // Its pipe must not fill.
        running.drain();
        Prometheus { _running: running, addr }
    }

    /// What its API says.
    fn api(&self, path: &str) -> Value {
        let mut stream = client(self.addr);
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// What it answers to an expression.
    fn query(&self, expression: &str) -> Value {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.api(&format!("query?query={encoded}"))
    }

    /// The value of the one series that an expression gives, if it gives one.
    fn value(&self, expression: &str) -> Option<f64> {
        let answer = self.query(expression);
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }
}

#[test]
fn prometheus_scrapes_it_and_understands_every_expression_of_the_dashboard() {
    let scene = Scene::new();
    let relay = scene.relay(echo(), &["--name", "the web"]);
    exchange(relay.addr(), 100_000);
    let metrics = scene.metrics();
    let prometheus = Prometheus::start(&scene, metrics.addr());
    let until = Instant::now() + SOON;
    while prometheus.value("up{job=\"cachelane\"}") != Some(1.0) {
        let targets = prometheus.api("targets");
        assert!(Instant::now() < until, "{targets:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let bytes = "cachelane_relay_bytes_total{process=\"relay\",name=\"the web\"}";
    assert!(comes_true(|| prometheus.value(bytes) == Some(200_000.0)));
    // Prometheus asks for OpenMetrics, and believes what that says of a unit and a type.
    let about = prometheus.api("targets/metadata?metric=cachelane_relay_bytes");
    let about = (&about["data"][0]["type"], &about["data"][0]["unit"]);
    assert_eq!(about, (&Value::from("counter"), &Value::from("bytes")));
    for expression in dashboard().iter().filter(|one| !one.starts_with("label_values")) {
        let mut plain = expression.replace("$__rate_interval", "1m");
        for variable in ["$job", "$instance", "$name"] {
            plain = plain.replace(variable, ".*");
        }
        let answer = prometheus.query(&plain);
        assert_eq!(answer["status"], "success", "{plain}: {answer}");
        assert_eq!(answer["warnings"], Value::Null, "{plain}: {answer}");
    }
    let rules = prometheus.api("rules");
    let rules = rules["data"]["groups"][0]["rules"].as_array().expect("rules").clone();
    assert_eq!(rules.len(), alerts().len());
    // A process that is stopped is seen by the alert.
    relay.signal(rustix::process::Signal::STOP);
    let pending = "ALERTS{alertname=\"CachelaneProcessSilent\",name=\"the web\"}";
    assert!(comes_true(|| prometheus.value(pending) == Some(1.0)));
    relay.signal(rustix::process::Signal::CONT);
}

#[test]
fn root_every_metric_of_the_dashboard_the_alerts_and_the_page_is_there_and_no_other() {
    let test = "root_every_metric_of_the_dashboard_the_alerts_and_the_page_is_there_and_no_other";
    if !root(test) {
        return;
    }
    let scene = xsk::Scene::new("metrics");
    let members = [scene.host("m"), scene.host("n")];
    let options = BridgeOptions::default();
    let bridge = scene.bridge("switch", &[&members[0], &members[1]], options);
    let lent = scene.link("a", "b");
    let wire = lab::LinkOptions { wire_like: true, ..lab::LinkOptions::default() };
    let steered = scene.join(&scene.host("c"), &scene.host("d"), wire);
    let socket = scene.place.path().join("lend.sock").display().to_string();
    let lend = ["lend", &lent.b.device, "--socket", &socket, "--udp-port", "9000"];
    let to = echo().to_string();
    let relay = ["relay", "--listen", "127.0.0.1:0", "--to", &to, "--engine", "copy"];
    let here = lab::Host::here().expect("this host");
    let nothing = scene.place.path().join("up.toml");
    std::fs::write(&nothing, "").expect("a file");
    let up = ["up", "-c", "up.toml"];
    let _running = [
        scene.start(&bridge.own.host, &["bridge", "br0"], "ports accelerated"),
        scene.start(&steered.b.host, &["steer", &steered.b.device, "--force"], "steering flows of"),
        scene.start(&lent.b.host, &lend, "lending UDP to port 9000 on"),
        scene.start(&here, &["borrow", &socket], "counting what"),
        scene.start(&here, &up, "the configuration asks for nothing"),
    ];
    let relay = Running::start(&mut scene.command(&relay), "relaying ");
    exchange(relay.addr(), 1000);
    let listen = ["metrics", "--listen", "127.0.0.1:0"];
    let metrics = Running::start(&mut scene.command(&listen), "serving http://");
    // What only a connection that has ended has.
    let ended = |all: &BTreeMap<String, f64>| {
        families(all).contains("cachelane_relay_backend_session_seconds")
    };
    assert!(comes_true(|| ended(&scrape(metrics.addr()))));
    let page = get(metrics.addr(), "/metrics");
    let output = promtool(&["check", "metrics"], page.text());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let (all, types) = (series(page.text()), typed(page.text()));
    for kind in ["bridge", "steer", "lend", "relay", "metrics", "up"] {
        assert_eq!(value(&all, "cachelane_process_up", &[("process", kind)]), 1.0);
        assert_eq!(value(&all, "cachelane_process_left_out", &[("process", kind)]), 0.0);
    }
    for expression in dashboard().iter().chain(alerts().values()) {
        for name in names(expression) {
            // Of what a label is called, and a reason.
            let is_label = expression.contains(&format!("{name}="));
            assert!(is_label || types.contains_key(&name), "{name} of {expression}");
        }
    }
    let documented = documented();
    let unlike: Vec<_> =
        documented.iter().filter(|(name, kind)| types.get(*name) != Some(kind)).collect();
    let unsaid: Vec<_> =
        types.iter().filter(|(name, kind)| documented.get(*name) != Some(kind)).collect();
    assert!(unlike.is_empty() && unsaid.is_empty(), "docs/metrics.md: {unlike:?}, {unsaid:?}");
}

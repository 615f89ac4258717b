//! How the test treats each command of the manual. A command that no line is for fails the test.

/// What is done with a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// Run as it stands, to its end, with one of these statuses.
    Whole(&'static [i32]),
    /// The same, and again until it prints what the page shows: what it looks at takes its time.
    Soon(&'static [i32]),
    /// Started, seen ready, and ended as by Ctrl-C, with status 0, at the end of its page, or before another
    /// one starts that has the same device, address or bridge.
    Serves,
    /// Run with this added, to status 0; the reason why not as it stands.
    With(&'static str, &'static str),
    /// Run with the first replaced by the second, with one of these statuses; the reason.
    Instead(&'static str, &'static str, &'static [i32], &'static str),
    /// Not run, for this reason.
    Foreign(&'static str),
    /// Somebody else's program in the background, which is ready when this command succeeds.
    Beside(&'static str),
}

use How::{Beside, Foreign, Instead, Serves, Soon, Whole, With};

const LONG: &str = "it measures for minutes; the benches' own tests run each part of it";
const MACHINE: &str = "it is a setting of the machine, which no test host has";
const TIME: &str = "it measures for minutes; trial.rs runs trials";

/// The beginning of a page's path, or `*`; the beginning of a command; what is done with it.
pub(crate) type Class = (&'static str, &'static str, How);

/// The first line whose beginning the command has is the one.
pub(crate) const CLASSES: &[Class] = &[
    (
        "docs/trial.md",
        "cachelane trial relay.engine --arms copy,splice --for 1h",
        Instead("--for 1h --window 1m", "--blocks 6 --window 50ms", &[0, 5], TIME),
    ),
    (
        "docs/combining.md",
        "cachelane trial relay.engine",
        Instead("--json", "--json --blocks 6 --window 50ms", &[0, 5], TIME),
    ),
    ("docs/releases.md", "cachelane config check", With("--help", "it is about the reader's own")),
    ("docs/releases.md", "cachelane up --status", With("--help", "it is about the reader's own")),
    ("docs/kubernetes.md", "cachelane config check", With("--help", "kubernetes/main.rs does it")),
    ("docs/kubernetes.md", "cachelane trial combine", With("--help", "kubernetes/node.rs does it")),
    // Such short trials may tell or not.
    ("*", "cachelane trial combine", Whole(&[0, 5])),
    // A process that does not answer, and a member that waits, are failures.
    ("docs/knobs.md", "cachelane knob list", Soon(&[0, 1])),
    ("docs/up.md", "cachelane up --status", Soon(&[1])),
    ("*", "cachelane steer veth0 --check", Whole(&[1])),
    (
        "docs/turn-it-on.md",
        "cachelane trial steer.llc_affinity",
        With("--help", "it measures what few kernels count (CONFIG_SCHEDSTATS)"),
    ),
    (
        "docs/findings/",
        "cachelane trial bridge.fastpath",
        With("--help", "PORT stands for a device of the reader's"),
    ),
    ("docs/up.md", "cachelane config check -c proxy.toml", Whole(&[2])),
    (
        "docs/tutorial.md",
        "cachelane trial relay.engine",
        Instead("--for 1m", "--blocks 6 --window 100ms", &[0, 5], "it takes a minute"),
    ),
    (
        "docs/tutorial.md",
        "ip netns exec backend python3",
        Beside("ip netns exec backend ss -ltn | grep ':80 '"),
    ),
    ("docs/tutorial.md", "ip netns exec client sh", Beside("true")),
    ("*", "cachelane bench", With("--help", LONG)),
    ("*", "cachelane trial sysctl:", With("--help", MACHINE)),
    ("*", "cachelane trial file:/proc/irq/", With("--help", MACHINE)),
    ("*", "cachelane trial file:/sys/fs/cgroup/", With("--help", MACHINE)),
    ("*", "cachelane trial", With("--dry-run", TIME)),
    ("*", "cachelane top --once", Whole(&[0])),
    ("*", "cachelane top", With("--once", "it draws on a terminal; top.rs looks at that")),
    ("*", "cachelane relay --stats", Soon(&[0])),
    ("*", "cachelane relay", Serves),
    ("*", "cachelane bridge", Serves),
    ("*", "cachelane steer", Serves),
    ("*", "cachelane lend", Serves),
    (
        "*",
        "cachelane borrow /run/eth1.lend -- tcpdump",
        Beside("grep -q 'listening on cachelane' /mnt/*.err"),
    ),
    (
        "*",
        "cachelane borrow /run/eth1.lend --share -- suricata",
        Foreign("no test host has Suricata"),
    ),
    ("*", "cachelane borrow", Serves),
    ("*", "cachelane xsk send eth1 --pcap", With("--help", "it sends a file of the reader's")),
    ("*", "cachelane xsk send eth1 --latency", With("--dry-run", "nobody sends it back")),
    ("*", "cachelane xsk search", With("--dry-run", "nobody sends it back")),
    ("*", "cachelane xsk", Serves),
    ("*", "cachelane metrics --once", Soon(&[0])),
    ("*", "cachelane metrics", Serves),
    ("*", "cachelane up --status", Soon(&[0])),
    ("*", "cachelane up", Serves),
    ("*", "cachelane knob set", Whole(&[0])),
    ("*", "cachelane knob", Soon(&[0])),
    ("*", "cachelane doctor", Whole(&[0, 1])),
    ("*", "cachelane config", Whole(&[0])),
    ("*", "cachelane undo", Whole(&[0])),
    ("*", "cachelane --version", Whole(&[0])),
    ("*", "ip netns exec client curl", Soon(&[0])),
    ("*", "curl ", Soon(&[0])),
    ("*", "ip ", Whole(&[0])),
    ("*", "mv ", Whole(&[0])),
    ("*", "mkdir ", Whole(&[0])),
    ("*", "echo ", Whole(&[0])),
    ("*", "head ", Whole(&[0])),
    ("*", "sed ", Whole(&[0])),
    ("*", "kill ", Whole(&[0])),
    ("docs/kubernetes.md", "kubectl ", Foreign("there is no cluster")),
    ("docs/kubernetes.md", "skopeo ", Foreign("there is no registry")),
    ("docs/releases.md", "sha256sum ", Foreign("it is about the files of a release")),
    ("docs/releases.md", "scripts/release ", Foreign("it builds")),
    ("docs/releases.md", "RELEASE_SIGN=", Foreign("it builds")),
    ("docs/releases.md", "git commit ", Foreign("it is about a checkout")),
    ("*", "apt-get ", Foreign("it installs packages")),
    ("*", "make ", Foreign("it builds")),
    ("*", "install ", Foreign("it installs what was built")),
    ("*", "systemctl ", Foreign("test hosts have no service manager")),
    ("*", "cargo ", Foreign("it builds")),
    ("*", "iperf3 ", Foreign("there is no peer")),
];

const RELAY: &str = "cachelane relay --listen :8080 --to 10.0.0.5:80";
const STEER: &str = "cachelane steer eth0";
const TRAFFIC: &str = "sh -c 'while curl -so /dev/null http://127.0.0.1:8080/; do :; done'";

/// What runs on a page's host from before its first command on.
pub(crate) const BEFORE: &[(&str, &[&str])] = &[
    ("docs/turn-it-on.md", &["cachelane xsk drop eth1"]),
    ("docs/knobs.md", &[RELAY, "cachelane relay --listen :8090 --to 10.0.0.5:80 --name 'the web'"]),
    ("docs/metrics.md", &[RELAY]),
    ("docs/trial.md", &[RELAY, STEER, TRAFFIC]),
    ("docs/measures.md", &[STEER]),
    ("docs/combining.md", &[RELAY, TRAFFIC]),
    ("docs/findings/", &[RELAY, STEER, "cachelane bridge br0"]),
];

/// Files that a page's host has before its first command.
pub(crate) const FILES: &[(&str, &str, &str)] = &[
    (
        "README.md",
        "/etc/cachelane/config.toml",
        "[relay.web]\nlisten = \":8088\"\nto = \"10.0.0.5:80\"\n",
    ),
    (
        "docs/up.md",
        "proxy.toml",
        "[relay.web]\nbudget = \"8X\"\nlisen = \":1\"\nto = \"a:1\"\n\n\n[relay.db]\nlisten = \":2\"\n",
    ),
    (
        "docs/traffic.md",
        "eth1.rss",
        "RX flow hash indirection table for eth1 with 8 RX ring(s):\n    0:      0     1     2     3     \
         4     5     6     7\nRSS hash key:\n6d:5a:56:da:25:5b:0e:c2:41:67:25:3d:43:a3:8f:b0\nRSS hash \
         function:\n    toeplitz: on\n    xor: off\n    crc32: off\n",
    ),
];

/// The line that is for a command.
pub(crate) fn class(page: &str, command: &str) -> Option<&'static Class> {
    let fits = |(of, beginning, _): &&Class| {
        (*of == "*" || page.starts_with(of)) && command.starts_with(beginning)
    };
    CLASSES.iter().find(fits)
}

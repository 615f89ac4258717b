//! Against real bridges, in namespaces of their own.

mod kernel;
mod reading;
mod settings;
mod table;
mod vlans;
mod watching;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lab::{BridgeOptions, Host, Lab};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::kernel::{chain, drop_table, set_port};
use super::{Reader, Watch};
use crate::host::ROOM;
use crate::state::{State, StpState};

/// How long what is bound to come may take: the kernel tells of a carrier after up to a second.
const LIMIT: Duration = Duration::from_secs(10);

/// A bridge with two ports, whose other ends are in the hosts `a` and `b`.
struct Rig {
    lab: Lab,
    a: Host,
    bridge: lab::Bridge,
}

impl Rig {
    /// None, and a word on stderr, if this process may not make one.
    fn new(test: &str) -> Option<Self> {
        if !lab::testing::root(test) {
            return None;
        }
        let lab = Lab::new("host").expect("a lab");
        let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
        let bridge = lab.bridge("switch", &[&a, &b], BridgeOptions::default()).expect("a bridge");
        Some(Self { lab, a, bridge })
    }

    fn host(&self) -> &Host {
        &self.bridge.own.host
    }

    /// Runs `work` where the bridge is, once its ports forward.
    fn run<T: Send>(&self, work: impl FnOnce(&mut Reader, &State) -> T + Send) -> T {
        let forward = |state: &State| {
            state.ports.iter().all(|port| port.running && port.stp == StpState::Forwarding)
        };
        let run = || {
            let mut reader = Reader::new().expect("a reader");
            let index = reader.state("br0").expect("the state").bridge.index;
            let mut watch = Watch::new(index, ROOM).expect("a watch");
            let (state, _) = wait(&mut reader, &mut watch, |state, _| forward(state));
            work(&mut reader, &state)
        };
        self.host().run(run).expect("a thread in the host")
    }

    /// One step: a command where the bridge is, or one of
    /// `a: COMMAND`, in the host `a`;
    /// `set PORT SETTING on|off`, for settings that this `bridge` command does not know;
    /// `nft FAMILY TABLE HOOK [DEVICE]`, which makes a table with a base chain; `nft delete FAMILY
    /// TABLE`.
    fn step(&self, step: &str) {
        let words: Vec<_> = step.split_whitespace().collect();
        match words[..] {
            ["a:", program, ref args @ ..] => run(&self.a, program, args),
            ["set", port, setting, value] => set_port(port, setting, value == "on"),
            ["nft", "delete", family, table] => drop_table(family, table),
            ["nft", family, table, hook] => chain(family, table, hook, None),
            ["nft", family, table, hook, device] => chain(family, table, hook, Some(device)),
            [program, ref args @ ..] => run(self.host(), program, args),
            [] => {}
        }
    }

    /// A BPF object with a program for each of XDP and tcx that lets everything pass.
    fn bpf_object(&self) -> PathBuf {
        let (source, object) = (self.lab.dir().join("pass.c"), self.lab.dir().join("pass.o"));
        let text = "__attribute__((section(\"xdp\"), used)) int pass_xdp(void *c) { return 2; }\n\
                    __attribute__((section(\"tc\"), used)) int pass_tc(void *c) { return -1; }\n";
        fs::write(&source, text).expect("a file in the lab's folder");
        let args = ["-target", "bpf", "-g", "-O2", "-c", "-o"];
        let clang = self.a.command("clang").args(args).arg(&object).arg(&source);
        clang.run().expect("clang, which builds this crate, compiles");
        object
    }
}

fn run(host: &Host, program: &str, args: &[&str]) {
    host.command(program).args(args).run().expect("the command succeeds");
}

/// Reads the state until it is as wanted, at each change; gives what it is in the end, and whether
/// a change was announced meanwhile, which `wanted` is told as well.
fn wait(
    reader: &mut Reader,
    watch: &mut Watch,
    wanted: impl Fn(&State, bool) -> bool,
) -> (State, bool) {
    let (end, mut announced) = (Instant::now() + LIMIT, false);
    loop {
        announced |= watch.drain(&mut Vec::new()).expect("nothing is lost");
        let state = reader.state("br0").expect("the state");
        if wanted(&state, announced) || Instant::now() > end {
            return (state, announced);
        }
        let fds = watch.fds();
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // What is not announced is looked for now and then.
        let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        poll(&mut fds, Some(&limit)).expect("polling");
    }
}

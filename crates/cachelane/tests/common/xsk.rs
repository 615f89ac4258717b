//! What the tests of `cachelane xsk` share: links between test hosts, and the command on them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output};
use std::time::Duration;

use lab::{Bridge, BridgeOptions, End, Host, Lab, Link, LinkOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{PROGRAM, Place, ends_within};

/// The longest that any run in these tests takes once it has been asked to end.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Test hosts, and a folder to run the command from.
pub(crate) struct Scene {
    pub(crate) place: Place,
    pub(crate) lab: Lab,
}

impl Scene {
    pub(crate) fn new(name: &str) -> Scene {
        Scene { place: Place::new(), lab: Lab::new(name).expect("a lab") }
    }

    pub(crate) fn host(&self, name: &str) -> Host {
        self.lab.host(name).expect("a host")
    }

    /// A link, each end in a new host of that name.
    pub(crate) fn link(&self, a: &str, b: &str) -> Link {
        self.join(&self.host(a), &self.host(b), LinkOptions::default())
    }

    pub(crate) fn join(&self, a: &Host, b: &Host, options: LinkOptions) -> Link {
        let link = self.lab.link(a, b, options).expect("a link");
        // Nothing but what the tests send: no neighbour discovery, and no reports of groups.
        for end in [&link.a, &link.b] {
            let name = format!("net.ipv6.conf.{}.disable_ipv6", end.device);
            end.host.set_sysctl(&name, "1").expect("root may");
        }
        link
    }

    /// A Linux bridge in a host of that name, with a port for each member.
    pub(crate) fn bridge(&self, name: &str, members: &[&Host], options: BridgeOptions) -> Bridge {
        self.lab.bridge(name, members, options).expect("a bridge")
    }

    /// The command, which knows of no process but those of this scene.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("CACHELANE_RUNTIME_DIR", self.place.path()).env("NO_COLOR", "1");
        command
    }

    pub(crate) fn run(&self, host: &Host, args: &[&str]) -> Output {
        let mut command = self.command(args);
        host.run(move || command.output()).expect("the host").expect("it runs")
    }

    /// Runs it with `--json` and gives the object that it ends with.
    pub(crate) fn object(&self, host: &Host, args: &[&str]) -> Value {
        let output = self.run(host, &[args, &["--json"]].concat());
        assert!(output.status.success(), "{args:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    }

    /// Starts it and waits until it says this.
    pub(crate) fn start(&self, host: &Host, args: &[&str], says: &str) -> Running {
        self.start_program(PROGRAM, host, args, says)
    }

    /// The same with a program that becomes the command.
    pub(crate) fn start_program(
        &self,
        program: &str,
        host: &Host,
        args: &[&str],
        says: &str,
    ) -> Running {
        let mut command = self.place.wrapped(program.as_ref(), args);
        command.env("CACHELANE_RUNTIME_DIR", self.place.path()).env("NO_COLOR", "1");
        let mut child = host.run(move || command.spawn()).expect("the host").expect("it starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut lines = log.by_ref().map_while(Result::ok);
        let mut before = Vec::new();
        let said = lines.any(|line| {
            before.push(line.clone());
            line.contains(says)
        });
        assert!(said, "it ended ({:?}): {before:?}", child.wait());
        std::thread::spawn(move || log.for_each(drop));
        Running(Some(child))
    }

    /// A counter of a process that runs.
    pub(crate) fn counter(&self, of: &Running, name: &str) -> u64 {
        let args = ["knob", "list", "--counters", "--json", "--pid", &of.pid()];
        let output = self.command(&args).output().expect("it runs");
        let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let counters = list["processes"][0]["counters"].as_array().expect("counters").clone();
        let found = counters.iter().find(|counter| counter["name"] == name);
        found.and_then(|counter| counter["value"].as_u64()).expect("a counter of this name")
    }

    pub(crate) fn set_alien_free(&self, of: &Running, value: &str) {
        let args = ["knob", "set", "frames.alien_free", value, "--pid", &of.pid()];
        let output = self.command(&args).output().expect("it runs");
        assert!(output.status.success(), "{value}: {output:?}");
    }
}

/// The command while it runs; killed when dropped.
pub(crate) struct Running(pub(crate) Option<Child>);

impl Running {
    pub(crate) fn child(&self) -> &Child {
        self.0.as_ref().expect("it was not ended")
    }

    pub(crate) fn pid(&self) -> String {
        self.child().id().to_string()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.child()), signal).expect("it runs");
    }

    pub(crate) fn end(self, signal: Signal) -> Output {
        self.signal(signal);
        self.ends()
    }

    /// Waits until it has ended by itself.
    pub(crate) fn ends(mut self) -> Output {
        ends_within(self.0.take().expect("it was not ended"), SOON)
    }

    /// Ends it with Ctrl-C and gives the object that it prints.
    pub(crate) fn object(self) -> Value {
        let output = self.end(Signal::INT);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether an XDP program is on the device.
pub(crate) fn has_program(end: &End) -> bool {
    let shown = end.host.ip(["-details", "link", "show", "dev", &end.device]).expect("ip");
    shown.contains("xdp")
}

pub(crate) fn number(object: &Value, pointer: &str) -> u64 {
    let found = object.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no {pointer} in {object:#}"))
}

/// Two hosts, and one in between that both are linked to.
pub(crate) fn three(scene: &Scene) -> (Link, Link) {
    let middle = scene.host("m");
    let near = scene.join(&scene.host("a"), &middle, LinkOptions::default());
    let far = scene.join(&middle, &scene.host("b"), LinkOptions::default());
    (near, far)
}

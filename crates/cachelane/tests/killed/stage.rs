//! A host with a file system view of its own: what a process leaves in /run, /tmp or /dev/shm is seen
//! there, and what other people's processes leave is not.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Command, Output};

use lab::testing::no_bridge_calls;
use lab::{Bridge, BridgeOptions, Host, Lab, Link, LinkOptions};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::common::daemon::Daemon;
use crate::common::{PROGRAM, Place};

/// The UDP port that lenders and AF_XDP sockets take from the kernel.
pub(crate) const TAKEN: u16 = 9;

/// A host with a bridge of two members, and two devices at which a neighbour sends to it.
pub(crate) struct Stage {
    pub(crate) place: Place,
    pub(crate) bridge: Bridge,
    /// The second ends are the host's `eth0` and `eth1`.
    pub(crate) links: [Link; 2],
    mounts: OwnedFd,
    _lab: Lab,
}

impl Stage {
    pub(crate) fn new(name: &str) -> Stage {
        let lab = Lab::new(name).expect("a lab");
        let [a, b, c] = ["a", "b", "c"].map(|name| lab.host(name).expect("a host"));
        let bridge = lab.bridge("host", &[&a, &b], BridgeOptions::default()).expect("a bridge");
        let host = &bridge.own.host;
        no_bridge_calls(host);
        let wire = LinkOptions { wire_like: true, ..LinkOptions::default() };
        let links = [(); 2].map(|()| lab.link(&c, host, wire.clone()).expect("a link"));
        let place = Place::new();
        let program = Path::new(PROGRAM).parent().expect("a folder");
        let mounts = host.run(|| own_mounts(&[place.path(), program])).expect("the host");
        Stage { place, bridge, links, mounts: mounts.expect("mounts"), _lab: lab }
    }

    pub(crate) fn host(&self) -> &Host {
        &self.bridge.own.host
    }

    /// The other hosts, whose devices are the other ends of the host's.
    pub(crate) fn neighbours(&self) -> [&Host; 3] {
        let [a, b] = [0, 1].map(|member| &self.bridge.members[member].host);
        [a, b, &self.links[0].a.host]
    }

    /// Whether the kernel has tried out all addresses, here and at the neighbours.
    pub(crate) fn has_its_addresses(&self) -> bool {
        let is_done = |host: &Host| {
            host.ip(["-6", "address", "show", "tentative"]).is_ok_and(|text| text.is_empty())
        };
        is_done(self.host()) && self.neighbours().into_iter().all(is_done)
    }

    /// Works in the host, with its view of the file system.
    pub(crate) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            // Who shares a root directory with others cannot go elsewhere.
            unshare(UnshareFlags::FS)?;
            move_into_link_name_space(self.mounts.as_fd(), Some(LinkNameSpaceType::Mount))
        };
        let worked = self.host().run(|| enter().map(|()| work()));
        worked.expect("the host").expect("the host's mounts")
    }

    /// `cachelane` with these arguments, which belongs to the place and finds its directories as a
    /// user's would.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.place.command(args);
        command.env("NO_COLOR", "1");
        for name in ["CACHELANE_RUNTIME_DIR", "XDG_RUNTIME_DIR", "NOTIFY_SOCKET"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn spawn(&self, args: &[&str]) -> Daemon {
        let mut command = self.command(args);
        let mut child = self.within(move || command.spawn()).expect("it starts");
        // What it prints is nobody's concern, and must not make it wait.
        let mut out = child.stdout.take().expect("a pipe");
        std::thread::spawn(move || io::copy(&mut out, &mut io::sink()));
        Daemon::of(child)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        self.within(move || command.output()).expect("it runs")
    }

    /// What `cachelane` prints, which ends well.
    pub(crate) fn says(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text").trim().to_owned()
    }
}

/// Gives the calling thread a sysfs of its network namespace, and empty directories where processes
/// leave things. What is in `keep` can be seen as before.
fn own_mounts(keep: &[&Path]) -> io::Result<OwnedFd> {
    unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let kept: Vec<_> = keep
        .iter()
        .map(|path| open(*path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()))
        .collect::<Result<_, _>>()?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?;
    for dir in ["/tmp", "/run", "/dev/shm"] {
        mount("tmpfs", dir, "tmpfs", MountFlags::empty(), None)?;
    }
    for (path, file) in keep.iter().zip(kept) {
        fs::create_dir_all(path)?;
        mount_bind(format!("/proc/self/fd/{}", file.as_raw_fd()), *path)?;
    }
    File::open("/proc/thread-self/ns/mnt").map(OwnedFd::from)
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // Deprecated for what it does with `UnshareFlags::FILES`, which is not passed; its
    // replacement is an unsafe function.
    #[allow(deprecated)]
    rustix::thread::unshare(flags)
}

//! A lab: hosts, the links between them, and a folder.

use std::{
    path,
    sync::atomic::{AtomicU8, Ordering},
};

use parking_lot::Mutex;

use crate::{
    Error, Host, Result,
    bridge::{Bridge, BridgeOptions},
    link::{Link, LinkOptions, Subnet, pair},
    path::{Path, PathOptions},
    tempdir::{self, TempDir},
};

/// The most links and bridges that one lab can have.
const SUBNETS: u8 = 250;

/// A set of test hosts.
///
/// Labs do not see each other: each link lives in the namespaces of its two hosts only, so two
/// labs use the same addresses without harm. Dropping the lab and all handles of its hosts
/// removes everything; if the process is killed, the kernel removes the namespaces and kills
/// the programs, and the next lab removes the folder.
#[derive(Debug)]
pub struct Lab {
    name: String,
    dir: TempDir,
    next_subnet: AtomicU8,
    /// Kept, so that a link does not vanish with the handle of the host at its other end.
    hosts: Mutex<Vec<Host>>,
}

impl Lab {
    /// A lab without hosts. Needs no privilege by itself.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name that is not made of 1 to 32
    /// ASCII letters, digits, `-` and `_`; [`ErrorKind::Io`](crate::ErrorKind::Io) if its
    /// folder cannot be made.
    pub fn new(name: &str) -> Result<Self> {
        check_name(name)?;
        let parent = std::env::temp_dir();
        tempdir::sweep(&parent);
        let (dir, next_subnet) = (TempDir::new(&parent)?, AtomicU8::new(1));
        Ok(Self { name: name.into(), dir, next_subnet, hosts: Mutex::default() })
    }

    /// A folder for files of this lab, removed with it. Only this user can open it.
    pub fn dir(&self) -> &path::Path {
        self.dir.path()
    }

    /// A new host with nothing but its loopback device. It lasts until the lab and all its
    /// handles are dropped.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`](crate::ErrorKind::NotPermitted) without root;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name as [`Lab::new`] refuses;
    /// [`ErrorKind::Missing`](crate::ErrorKind::Missing) without `ip`.
    pub fn host(&self, name: &str) -> Result<Host> {
        check_name(name)?;
        let host = Host::new(name)?;
        self.hosts.lock().push(host.clone());
        Ok(host)
    }

    /// Joins two hosts by a veth pair. The devices are called `eth0`, `eth1` … in the order in
    /// which a host gets them; `a` has the addresses ending in 1, `b` those ending in 2.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range, for
    /// [`Host::here`] and past 250 links; [`ErrorKind::Command`](crate::ErrorKind::Command) if
    /// the system refuses.
    pub fn link(&self, a: &Host, b: &Host, options: LinkOptions) -> Result<Link> {
        let subnet = self.subnet()?;
        let (a, b) = (subnet.end(a, a.next_device(), 0, 1), subnet.end(b, b.next_device(), 0, 2));
        pair(&a, &b, &options)?;
        for end in [&a, &b] {
            end.set_addresses()?;
            end.set_up()?;
        }
        Ok(Link { a, b })
    }

    /// Joins hosts by a Linux bridge `br0` in a host of its own. Member *i* (from 0) is on port
    /// `p`*i* and has the addresses ending in *i* + 1; the bridge itself has those ending in 254.
    ///
    /// # Errors
    /// As [`link`](Self::link); [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for no or
    /// more than 250 members.
    pub fn bridge(&self, name: &str, members: &[&Host], options: BridgeOptions) -> Result<Bridge> {
        Bridge::new(self.host(name)?, members, self.subnet()?, &options)
    }

    /// Joins two hosts by a path that delays what it carries, by way of a host of its own. Devices
    /// and addresses are as of a [`link`](Self::link).
    ///
    /// # Errors
    /// As [`link`](Self::link).
    pub fn path(&self, a: &Host, b: &Host, options: PathOptions) -> Result<Path> {
        a.refuse_here("a path")?;
        b.refuse_here("a path")?;
        Path::new(self.subnet()?, a, b, &self.host("path")?, options)
    }

    /// A subnet that no other link of this lab has.
    fn subnet(&self) -> Result<Subnet> {
        let next = |number: u8| (number <= SUBNETS).then_some(number + 1);
        // Relaxed: a counter on its own.
        let number = self
            .next_subnet
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .map_err(|_| Error::invalid(format!("{}: more than {SUBNETS} links", self.name)))?;
        Ok(Subnet { number })
    }
}

fn check_name(name: &str) -> Result<()> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if (1..=32).contains(&name.len()) && name.bytes().all(valid) {
        return Ok(());
    }
    Err(Error::invalid(format!("name {name:?}: expected 1 to 32 ASCII letters, digits, - and _")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn names_that_could_confuse_a_shell_or_a_path_are_refused() {
        for name in ["", "a b", "a/b", "ä", "x;y", &"n".repeat(33)] {
            assert_eq!(Lab::new(name).expect_err(name).kind(), ErrorKind::Invalid, "{name}");
        }
        assert!(Lab::new("demo-1_b").is_ok());
    }

    #[test]
    fn subnets_are_given_out_once_and_run_out_with_an_error() {
        let lab = Lab::new("subnets").expect("a lab");
        let mut seen = std::collections::HashSet::new();
        for _ in 0..SUBNETS {
            assert!(seen.insert(lab.subnet().expect("a subnet").number));
        }
        assert_eq!(lab.subnet().expect_err("no more").kind(), ErrorKind::Invalid);
    }

    #[test]
    fn the_network_of_the_machine_itself_is_left_alone() {
        let lab = Lab::new("here").expect("a lab");
        let here = Host::here().expect("a host");
        let refused = lab.link(&here, &here, LinkOptions::default()).map(drop);
        assert_eq!(refused.expect_err("a link").kind(), ErrorKind::Invalid);
        assert_eq!(here.ip(["link"]).expect_err("ip").kind(), ErrorKind::Invalid);
        let sysctl = here.set_sysctl("net.ipv4.ip_forward", "0");
        assert_eq!(sysctl.expect_err("a sysctl").kind(), ErrorKind::Invalid);
    }
}

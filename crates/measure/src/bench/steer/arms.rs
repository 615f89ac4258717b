//! Who steers: cachelane, the kernel by its receive flow steering (RFS) or receive packet steering
//! (RPS), or nobody.
//!
//! The kernel's are set as its documentation advises (Documentation/networking/scaling.rst): all
//! CPUs for the device's one queue; for RFS, 32768 flows, all of them that queue's.

use std::any::Any;
use std::ops::Deref;

use anyhow::Context as _;
use lab::PassProgram;
use lanes::CpuSet;

use super::flow_entries::{ADVISED, FlowEntries};
use super::hosts::{Hosts, Lanes};
use crate::bench::found::Found;

/// Who steers, and what is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// cachelane, with a lane per CPU: flows follow their consumers to each CPU, as with RFS.
    Steer,
    /// The kernel.
    Kernel(Kernel, Device),
}

/// What of the kernel steers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Rfs,
    Rps,
    Nothing,
}

/// What is on the device where cachelane does not steer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Device {
    /// A program that lets everything pass, so that packets come as cachelane's come to it.
    Passing,
    /// No program.
    Bare,
}

impl Arm {
    pub(super) const ALL: [Arm; 7] = [
        Arm::Steer,
        Arm::Kernel(Kernel::Rfs, Device::Passing),
        Arm::Kernel(Kernel::Rps, Device::Passing),
        Arm::Kernel(Kernel::Nothing, Device::Passing),
        Arm::Kernel(Kernel::Rfs, Device::Bare),
        Arm::Kernel(Kernel::Rps, Device::Bare),
        Arm::Kernel(Kernel::Nothing, Device::Bare),
    ];

    pub(super) fn name(self) -> String {
        let (kernel, device) = match self {
            Arm::Steer => return "steer".into(),
            Arm::Kernel(kernel, device) => (kernel, device),
        };
        let kernel = match kernel {
            Kernel::Rfs => "kernel rfs",
            Kernel::Rps => "kernel rps",
            Kernel::Nothing => "no steering",
        };
        let device = if device == Device::Bare { ", no program on the veth" } else { "" };
        format!("{kernel}{device}")
    }
}

/// Switches between arms on the same hosts; with it goes all that it has set.
pub(super) struct Switch<H> {
    /// What is on the device. Dropped before the hosts.
    there: Option<Box<dyn Any>>,
    hosts: H,
    passing: PassProgram,
    /// None where the kernel has no RFS.
    entries: Option<FlowEntries>,
    cpus: String,
}

impl<H: Deref<Target = Hosts>> Switch<H> {
    /// Finds out what the kernel can, and says what it cannot.
    pub(super) fn new(hosts: H, found: &mut Found) -> anyhow::Result<Switch<H>> {
        let entries = FlowEntries::of_machine().map_err(|error| {
            found.absent("kernel rfs", error.to_string());
        });
        let cpus = mask(&hosts.cpus);
        let passing = PassProgram::load()?;
        Ok(Switch { hosts, passing, entries: entries.ok(), cpus, there: None })
    }

    /// What it switches on.
    pub(super) fn hosts(&self) -> &H {
        &self.hosts
    }

    /// Those of these arms that there can be.
    pub(super) fn those_of(&self, arms: impl IntoIterator<Item = Arm>) -> Vec<Arm> {
        let there =
            |arm: &Arm| !matches!(arm, Arm::Kernel(Kernel::Rfs, _)) || self.entries.is_some();
        arms.into_iter().filter(there).collect()
    }

    /// What was done to the machine, for the reader.
    pub(super) fn note(&self) -> Option<String> {
        let found = self.entries.as_ref()?.found();
        Some(format!(
            "For kernel RFS net.core.rps_sock_flow_entries, which is the whole machine's, was \
             {ADVISED} by turns, and {found} otherwise, as it was found."
        ))
    }

    /// Has an arm steer from now on.
    pub(super) fn set(&mut self, arm: Arm) -> anyhow::Result<()> {
        self.there = None;
        let kernel = match arm {
            Arm::Steer => Kernel::Nothing,
            Arm::Kernel(kernel, _) => kernel,
        };
        let (rps, rfs) = (kernel != Kernel::Nothing, kernel == Kernel::Rfs);
        if let Some(entries) = &mut self.entries {
            entries.set(rfs)?;
            self.attribute("rps_flow_cnt", if rfs { ADVISED } else { "0" })?;
        }
        self.attribute("rps_cpus", if rps { &self.cpus } else { "0" })?;
        self.there = match arm {
            Arm::Steer => Some(Box::new(self.hosts.steer(Lanes::PerCpu, true)?)),
            Arm::Kernel(_, Device::Passing) => Some(Box::new(self.hosts.pass(&self.passing)?)),
            Arm::Kernel(_, Device::Bare) => None,
        };
        Ok(())
    }

    fn attribute(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let set = self.hosts.end.set_attribute(&format!("queues/rx-0/{name}"), value);
        set.with_context(|| format!("{name} = {value}"))
    }
}

/// CPUs as the kernel reads a bitmap: groups of 32 bits in hexadecimal, the highest first.
fn mask(cpus: &CpuSet) -> String {
    let last = cpus.iter().max().unwrap_or(0) / 32;
    let bits = |group: usize| {
        let inside = cpus.iter().filter(|cpu| cpu / 32 == group);
        inside.fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32))
    };
    let groups: Vec<_> = (0..=last).rev().map(|group| format!("{:x}", bits(group))).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_written_as_the_kernel_reads_them() {
        for (cpus, expected) in [
            (vec![0, 1], "3"),
            (vec![5], "20"),
            (vec![31], "80000000"),
            (vec![0, 32], "1,1"),
            (vec![1, 95], "80000000,0,2"),
        ] {
            assert_eq!(mask(&cpus.iter().copied().collect()), expected, "{cpus:?}");
        }
    }

    #[test]
    fn arms_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = Arm::ALL.iter().map(|arm| arm.name()).collect();
        assert_eq!(names.len(), Arm::ALL.len());
    }
}

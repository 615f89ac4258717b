//! The BPF object: loads it, attaches it, and reads and writes its maps.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd as _;

use bpf::tcx::{self, Hook};
use bpf::{Link, Map, Plain as _};
use kit::netlink::is;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{RingBuffer, RingBufferBuilder};
use rustix::io::Errno;

use crate::error::Context as _;
use crate::state::{Key, Mac};
use crate::vlans::Vlans;
use crate::{Error, ErrorKind, Result};

include!(concat!(env!("OUT_DIR"), "/bridge.skel.rs"));

use skel::Maps;
pub(crate) use skel::constants;
pub(crate) use skel::types::{
    counts as Counts, edit as Edit, inlet as Inlet, inlet_bucket as InletBucket,
    observation as Observation, owner as Owner, port as Port, renewal as Renewal,
    request as Request, rules as Rules, settings as Settings, station as Station,
    vlan_set as VlanSet, vlans as PortVlans,
};

/// The program's name, as `bpftool prog` lists it.
pub(crate) const NAME: &str = "cachelane_br";

/// Known by it among a program's constants: no other program has these bytes there by chance.
pub(crate) const OWNER_MAGIC: u64 = 0x6361_6368_6562_7264;

/// What may fail with netfilter's rules.
pub(crate) const RULES: &str = "reading netfilter's rules";

/// The index of the loopback device, which each network namespace has.
const LOOPBACK: u32 = 1;

/// The loaded program and its maps. Nothing of it runs before [`Program::attach`].
#[derive(Debug)]
pub(crate) struct Program {
    program: bpf::Program,
    edit: bpf::Program,
    renew: bpf::Program,
    /// None where the kernel lets us read nothing of its own.
    observe: Option<bpf::Program>,
    id: u32,
    #[cfg(test)]
    copy_mark: u32,
    pub(crate) maps: Maps,
}

impl Program {
    /// Loads the object with room for so many stations and the VLANs of so many ports; `owner` is
    /// whose bridge it is for.
    pub(crate) fn load(stations: u32, ports: u32, owner: Owner) -> Result<Program> {
        let finds_devices = |program: Program| match program.device(LOOPBACK) {
            Ok(Some(_)) => Ok(program),
            // The kernel keeps them otherwise than those that this was made for.
            _ => Err("the kernel's table of devices is not as expected".to_owned()),
        };
        let loaded = Program::try_load(stations, ports, owner, true);
        let loaded = loaded.map_err(|error| error.to_string()).and_then(finds_devices);
        let loaded = loaded.or_else(|error| {
            // CAP_PERFMON is missing, for one.
            let program = Program::try_load(stations, ports, owner, false)?;
            tracing::warn!(
                "netfilter's rules are followed by their notifications alone, as the packet path \
                 may not read the kernel's: {error}"
            );
            Ok(program)
        });
        loaded.map_err(|error: bpf::Error| {
            let kind = match error.is_permission() {
                true => ErrorKind::NotPermitted,
                false => ErrorKind::Unsupported,
            };
            Error::new(kind, format!("the bridge's BPF program does not load: {error:#}"))
        })
    }

    /// `reads_rules` is whether the packet path reads netfilter's rules itself.
    fn try_load(
        stations: u32,
        ports: u32,
        owner: Owner,
        reads_rules: bool,
    ) -> std::result::Result<Program, bpf::Error> {
        // Half full at most: then nearly every station stands in the bucket of its hash.
        let buckets = (stations * 2 / constants::BUCKET_STATIONS).next_power_of_two();
        let buckets = buckets.max(constants::BUCKETS_TRIED);
        let copy_mark = rand::random_range(1..=u32::MAX);
        bpf::load(|storage| {
            let mut open = skel::BridgeSkelBuilder::default().open(storage)?;
            open.maps.table.set_max_entries(buckets)?;
            if let Some(constants) = &mut open.maps.rodata_data {
                constants.hash_seed = rand::random();
                constants.hash_shift = u64::BITS - buckets.trailing_zeros();
                constants.copy_mark = copy_mark;
                constants.owner = owner;
                constants.reads_rules = reads_rules.into();
            }
            open.progs.observe.set_autoload(reads_rules);
            open.maps.vlans.set_max_entries(ports)?;
            open.maps.stamps.set_max_entries(stations)?;
            open.maps.shared_stamps.set_max_entries(stations)?;
            let skel = open.load()?;
            let programs = &skel.progs;
            let program = bpf::Program::of(&programs.cachelane_br)?;
            let observe = reads_rules.then(|| bpf::Program::of(&programs.observe));
            Ok(Program {
                id: program.id()?,
                #[cfg(test)]
                copy_mark,
                program,
                edit: bpf::Program::of(&programs.edit)?,
                renew: bpf::Program::of(&programs.renew)?,
                observe: observe.transpose()?,
                maps: Maps::of(&skel.maps)?,
            })
        })
    }

    /// The program's id, as tcx lists it.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Attaches it behind whatever is on the device's ingress, for as long as the link is open.
    pub(crate) fn attach(&self, index: u32) -> io::Result<Link> {
        tcx::attach(self.program.as_fd(), index, Hook::Ingress)
    }

    /// A reader of the ring of stations that were seen on another port, which puts them into `seen`.
    pub(crate) fn moved<'a>(&'a self, seen: &'a RefCell<Vec<Key>>) -> Result<RingBuffer<'a>> {
        let take = |key: &[u8]| {
            seen.borrow_mut().extend(key_of(key));
            0
        };
        let mut builder = RingBufferBuilder::new();
        let added = builder.add(self.maps.moved.handle(), take).map(drop);
        let ring = added.and_then(|()| builder.build());
        ring.map_err(bpf::io_error).context("the ring of moved stations")
    }

    /// Writes a station. Returns whether there was room.
    pub(crate) fn set_station(&self, key: impl Into<Key>, station: Station) -> Result<bool> {
        self.edit(Edit::EDIT_WRITE, key, station).map(|(done, _)| done)
    }

    /// How often a station was seen on another port since it was written, and one more; none if
    /// it is not there.
    pub(crate) fn unsettled(&self, key: impl Into<Key>) -> Result<Option<u32>> {
        let (there, station) = self.edit(Edit::EDIT_READ, key, Station::default())?;
        Ok(there.then_some(station.unsettled))
    }

    /// Settles a station, unless it was seen on another port since `unsettled` was as given.
    /// Returns whether it is settled.
    pub(crate) fn settle(&self, key: impl Into<Key>, unsettled: u32) -> Result<bool> {
        self.edit(Edit::EDIT_SETTLE, key, Station { place: 0, unsettled }).map(|(done, _)| done)
    }

    /// Removes a station, if it is there.
    pub(crate) fn remove_station(&self, key: impl Into<Key>) -> Result<()> {
        self.edit(Edit::EDIT_REMOVE, key, Station::default()).map(drop)
    }

    /// Runs the program that edits the table. Returns what it says, and the request's station.
    fn edit(&self, edit: Edit, key: impl Into<Key>, station: Station) -> Result<(bool, Station)> {
        let key = key.into();
        if key.mac == Mac([0; 6]) {
            // Nobody has it, in whatever VLAN.
            return Ok((false, Station::default()));
        }
        let mut request = Request { key: number(key), station, edit, reserved: 0 };
        let done = self.edit.run(&mut request).context("the packet path's stations")?;
        Ok((done == 1, request.station))
    }

    /// What time it is for the lease, in jiffies.
    pub(crate) fn now(&self) -> Result<u64> {
        let mut renewal = Renewal::default();
        self.renew.run(&mut renewal).context("reading the time")?;
        Ok(renewal.from)
    }

    /// Has the packet path believe what it was told for so many jiffies from then on.
    pub(crate) fn renew(&self, from: u64, length: u32) -> Result<()> {
        let mut renewal = Renewal { from, length: u64::from(length.max(1)) };
        self.renew.run(&mut renewal).map(drop).context("renewing the lease")
    }

    /// How netfilter's rules are now in the calling thread's network namespace. `calls` are the open
    /// files of br_netfilter's sysctls, 0 for those that are not there.
    pub(crate) fn rules(&self, calls: [u32; 3]) -> Result<Rules> {
        let seen = self.observe(Observation { fds: calls, ..Observation::default() });
        seen.map(|seen| seen.rules).context(RULES)
    }

    /// Where the kernel has the device with this index; none if there is no such device. Where the
    /// packet path reads no rules, nobody needs to know, and it is 0.
    pub(crate) fn device(&self, index: u32) -> Result<Option<u64>> {
        let seen = self.observe(Observation { index, ..Observation::default() });
        let seen = seen.context("finding a port's device")?;
        Ok((seen.device != 0 || self.observe.is_none()).then_some(seen.device))
    }

    fn observe(&self, mut observation: Observation) -> io::Result<Observation> {
        if let Some(program) = &self.observe {
            program.run(&mut observation)?;
        }
        Ok(observation)
    }

    /// Says which rules leave bridged packets alone; none: no rules that there could be.
    pub(crate) fn believe(&self, rules: Option<Rules>) -> Result<()> {
        let never = || Rules { hooks: [u64::MAX; 3], ..Rules::default() };
        self.maps.data_rules.set(&0_u32, &rules.unwrap_or_else(never)).context(RULES)
    }

    pub(crate) fn set_port(&self, slot: u16, port: &Port) -> Result<()> {
        self.maps.ports.set(&u32::from(slot), port).context("telling the packet path about a port")
    }

    /// Says in which VLANs the port in a slot is.
    pub(crate) fn set_vlans(&self, slot: u16, vlans: &Vlans) -> Result<()> {
        let mut told = PortVlans::default();
        for (set, (forwarding, untagged)) in told.sets.iter_mut().zip(vlans.words()) {
            *set = VlanSet { forwarding, untagged };
        }
        self.maps.vlans.set(&u32::from(slot), &told).context("telling the packet path about VLANs")
    }

    /// Says which ports have interface indexes with this remainder, and their PVIDs.
    pub(crate) fn set_inlets(&self, bucket: u32, inlets: &InletBucket) -> Result<()> {
        self.maps.inlets.set(&bucket, inlets).context("telling the packet path about PVIDs")
    }

    pub(crate) fn configure(&self, settings: &Settings) -> Result<()> {
        self.maps.settings.set(&0_u32, settings).context("the settings")
    }

    /// The packet path's counts, over all CPUs.
    pub(crate) fn counts(&self) -> Result<Counts> {
        self.maps.counts.sum(&0_u32).context("the counters")
    }

    /// Bytes of kernel memory that the maps take.
    #[cfg(feature = "measure")]
    pub(crate) fn memory(&self) -> Result<u64> {
        self.maps
            .all()
            .into_iter()
            .map(Map::memory)
            .sum::<io::Result<_>>()
            .context("the maps' memory")
    }
}

/// Asks the kernel something harmless that needs tcx.
///
/// # Errors
/// [`ErrorKind::Unsupported`] on kernels without tcx; [`ErrorKind::Io`].
pub(crate) fn tcx_needed(index: u32) -> Result<()> {
    match tcx::programs(index, Hook::Ingress) {
        Err(error) if is(&error, Errno::INVAL) => {
            // One that is new enough, or it would have been refused before.
            let message = "this kernel is built without tcx links; expected CONFIG_NET_XGRESS=y";
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        asked => asked.map(drop).context("cannot ask for tcx programs"),
    }
}

/// What the packet path knows of the port in a slot: `PORT_*`.
pub(crate) fn port_flags(ports: &Map, slot: u32) -> io::Result<u32> {
    // Another version's ports may have more behind it.
    let port: Option<[u32; 2]> = ports.find(&slot)?;
    Ok(port.map_or(0, |[_index, flags]| flags))
}

/// The table's key of an address in a VLAN, as `key_of` in table.h makes it; of an address alone,
/// its number.
pub(crate) fn number(key: impl Into<Key>) -> u64 {
    let Key { mac: Mac([a, b, c, d, e, f]), vlan } = key.into();
    let [g, h] = vlan.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

/// The key with this number; none if it is not eight bytes.
fn key_of(number: &[u8]) -> Option<Key> {
    let ([a, b, c, d, e, f, g, h], []) = number.split_first_chunk()? else { return None };
    let mac = Mac([*a, *b, *c, *d, *e, *f]);
    Some(Key { mac, vlan: u16::from_ne_bytes([*g, *h]) })
}

impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        self.bytes() == other.bytes()
    }
}

#[cfg(test)]
mod tests;

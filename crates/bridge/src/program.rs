//! The BPF object: loads it, attaches it, and reads and writes its maps.

use std::io;
use std::os::fd::AsFd as _;

use bpf::tcx::{self, Hook};
use bpf::{Link, Map, Plain as _};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};

use crate::state::Mac;
use crate::{Error, ErrorKind, Result};

include!(concat!(env!("OUT_DIR"), "/bridge.skel.rs"));

pub(crate) use skel::constants;
pub(crate) use skel::types::{
    counts as Counts, edit as Edit, observation as Observation, owner as Owner, port as Port,
    renewal as Renewal, request as Request, rules as Rules, settings as Settings,
    station as Station,
};

/// The program's name, as `bpftool prog` lists it.
pub(crate) const NAME: &str = "cachelane_br";

/// Known by it among a program's constants: no other program has these bytes there by chance.
pub(crate) const OWNER_MAGIC: u64 = 0x6361_6368_6562_7264;

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
    table: Map,
    stamps: Map,
    shared_stamps: Map,
    ports: Map,
    settings: Map,
    counts: Map,
    arrivals: Map,
    moved: Map,
    rules: Map,
}

impl Program {
    /// Loads the object with room for so many stations; `owner` is whose bridge it is for.
    pub(crate) fn load(stations: u32, owner: Owner) -> Result<Program> {
        let finds_devices = |program: Program| match program.device(LOOPBACK) {
            Ok(Some(_)) => Ok(program),
            // The kernel keeps them otherwise than those that this was made for.
            _ => Err("the kernel's table of devices is not as expected".to_owned()),
        };
        let loaded = Program::try_load(stations, owner, true);
        let loaded = loaded.map_err(|error| error.to_string()).and_then(finds_devices);
        let loaded = loaded.or_else(|error| {
            // CAP_PERFMON is missing, for one.
            let program = Program::try_load(stations, owner, false)?;
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
            open.maps.stamps.set_max_entries(stations)?;
            open.maps.shared_stamps.set_max_entries(stations)?;
            let skel = open.load()?;
            let (programs, maps) = (&skel.progs, &skel.maps);
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
                table: Map::of(&maps.table)?,
                stamps: Map::of(&maps.stamps)?,
                shared_stamps: Map::of(&maps.shared_stamps)?,
                ports: Map::of(&maps.ports)?,
                settings: Map::of(&maps.settings)?,
                counts: Map::of(&maps.counts)?,
                arrivals: Map::of(&maps.arrivals)?,
                moved: Map::of(&maps.moved)?,
                rules: Map::of(&maps.data_rules)?,
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

    /// The ring of keys of stations that were seen on another port.
    pub(crate) fn moved(&self) -> &Map {
        &self.moved
    }

    /// Writes a station. Returns whether there was room.
    pub(crate) fn set_station(&self, mac: Mac, station: Station) -> io::Result<bool> {
        self.edit(Edit::EDIT_WRITE, mac, station).map(|(done, _)| done)
    }

    /// How often a station was seen on another port since it was written, and one more; none if
    /// it is not there.
    pub(crate) fn unsettled(&self, mac: Mac) -> io::Result<Option<u32>> {
        let (there, station) = self.edit(Edit::EDIT_READ, mac, Station::default())?;
        Ok(there.then_some(station.unsettled))
    }

    /// Settles a station, unless it was seen on another port since `unsettled` was as given.
    /// Returns whether it is settled.
    pub(crate) fn settle(&self, mac: Mac, unsettled: u32) -> io::Result<bool> {
        self.edit(Edit::EDIT_SETTLE, mac, Station { place: 0, unsettled }).map(|(done, _)| done)
    }

    /// Removes a station, if it is there.
    pub(crate) fn remove_station(&self, mac: Mac) -> io::Result<()> {
        self.edit(Edit::EDIT_REMOVE, mac, Station::default()).map(drop)
    }

    /// Runs the program that edits the table. Returns what it says, and the request's station.
    fn edit(&self, edit: Edit, mac: Mac, station: Station) -> io::Result<(bool, Station)> {
        let mut request = Request { key: key(mac), station, edit, reserved: 0 };
        let done = self.edit.run(&mut request)?;
        Ok((done == 1, request.station))
    }

    /// What time it is for the lease, in jiffies.
    pub(crate) fn now(&self) -> io::Result<u64> {
        let mut renewal = Renewal::default();
        self.renew.run(&mut renewal)?;
        Ok(renewal.from)
    }

    /// Has the packet path believe what it was told for so many jiffies from then on.
    pub(crate) fn renew(&self, from: u64, length: u32) -> io::Result<()> {
        self.renew.run(&mut Renewal { from, length: u64::from(length.max(1)) }).map(drop)
    }

    /// How netfilter's rules are now in the calling thread's network namespace. `calls` are the open
    /// files of br_netfilter's sysctls, 0 for those that are not there.
    pub(crate) fn rules(&self, calls: [u32; 3]) -> io::Result<Rules> {
        self.observe(Observation { fds: calls, ..Observation::default() }).map(|seen| seen.rules)
    }

    /// Where the kernel has the device with this index; none if there is no such device. Where the
    /// packet path reads no rules, nobody needs to know, and it is 0.
    pub(crate) fn device(&self, index: u32) -> io::Result<Option<u64>> {
        let seen = self.observe(Observation { index, ..Observation::default() })?;
        Ok((seen.device != 0 || self.observe.is_none()).then_some(seen.device))
    }

    fn observe(&self, mut observation: Observation) -> io::Result<Observation> {
        if let Some(program) = &self.observe {
            program.run(&mut observation)?;
        }
        Ok(observation)
    }

    /// Says which rules leave bridged packets alone; none: no rules that there could be.
    pub(crate) fn believe(&self, rules: Option<Rules>) -> io::Result<()> {
        let never = || Rules { hooks: [u64::MAX; 3], ..Rules::default() };
        self.rules.set(&0_u32, &rules.unwrap_or_else(never))
    }

    pub(crate) fn set_port(&self, slot: u32, port: &Port) -> io::Result<()> {
        self.ports.set(&slot, port)
    }

    #[cfg(test)]
    pub(crate) fn port_flags(&self, slot: u32) -> io::Result<u32> {
        port_flags(&self.ports, slot)
    }

    /// Begins to count the packets that get here from this device.
    pub(crate) fn count_arrivals(&self, index: u32) -> io::Result<()> {
        self.arrivals.set_per_cpu(&index, &0_u64)
    }

    /// Counts them no more.
    pub(crate) fn forget_arrivals(&self, index: u32) -> io::Result<()> {
        self.arrivals.remove(&index)
    }

    /// How many there were.
    pub(crate) fn arrivals(&self, index: u32) -> io::Result<u64> {
        self.arrivals.sum(&index)
    }

    pub(crate) fn configure(&self, settings: &Settings) -> io::Result<()> {
        self.settings.set(&0_u32, settings)
    }

    /// The packet path's counts, over all CPUs.
    pub(crate) fn counts(&self) -> io::Result<Counts> {
        self.counts.sum(&0_u32)
    }

    /// Bytes of kernel memory that the maps take.
    pub(crate) fn memory(&self) -> io::Result<u64> {
        let tables = [&self.table, &self.stamps, &self.shared_stamps];
        let others =
            [&self.ports, &self.settings, &self.counts, &self.arrivals, &self.moved, &self.rules];
        let maps = tables.into_iter().chain(others);
        maps.map(Map::memory).sum()
    }
}

/// What the packet path knows of the port in a slot: `PORT_*`.
pub(crate) fn port_flags(ports: &Map, slot: u32) -> io::Result<u32> {
    // Another version's ports may have more behind it.
    let port: Option<[u32; 2]> = ports.find(&slot)?;
    Ok(port.map_or(0, |[_index, flags]| flags))
}

/// The table's key of an address, as `key_of` in bridge.bpf.c makes it.
pub(crate) fn key(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_ne_bytes([a, b, c, d, e, f, 0, 0])
}

/// The address of a key; none if it is not eight bytes.
pub(crate) fn mac_of(key: &[u8]) -> Option<Mac> {
    key.get(..6)?.try_into().ok().map(Mac)
}

impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        self.bytes() == other.bytes()
    }
}

#[cfg(test)]
mod tests;

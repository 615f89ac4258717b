//! The BPF object: loads it, attaches it, and reads and writes its maps.
//!
//! `unsafe` here is the generated skeleton's, and the byte casts of its plain structs.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Program as BpfProgram};

use crate::state::Mac;
use crate::tcx::{self, Hook};
use crate::{Error, ErrorKind, Result};

#[allow(unreachable_pub, unused_qualifications, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/bridge.skel.rs"));
}

pub(crate) use skel::types::{
    observation as Observation, owner as Owner, port as Port, renewal as Renewal,
    request as Request, rules as Rules, settings as Settings, station as Station,
};

/// The program's name, as `bpftool prog` lists it.
pub(crate) const NAME: &str = "cachelane_br";

/// As in bridge.h.
pub(crate) const OWNER_MAGIC: u64 = 0x6361_6368_6562_7264;
pub(crate) const STATION_AGELESS: u32 = 1 << 10;
pub(crate) const STATION_FIXED: u32 = 1 << 11;
pub(crate) const STATION_SLOT_SHIFT: u32 = 12;
const BUCKET_STATIONS: u32 = 4;
const BUCKETS_TRIED: u32 = 8;
const EDIT_WRITE: u32 = 0;
const EDIT_REMOVE: u32 = 1;
const EDIT_READ: u32 = 2;
const EDIT_SETTLE: u32 = 3;
pub(crate) const PORT_IN: u32 = 1;
pub(crate) const PORT_OUT: u32 = 2;
pub(crate) const PORT_STRAIGHT: u32 = 4;
pub(crate) const PORT_ISOLATED: u32 = 8;
pub(crate) const PORT_REFRESH: u32 = 16;
pub(crate) const PORT_COPY: u32 = 32;
pub(crate) const PORT_UNSEEN: u32 = 64;
pub(crate) const KERNEL_IPV4: u32 = 1;
pub(crate) const KERNEL_IPV6: u32 = 2;
pub(crate) const KERNEL_ARP: u32 = 4;
pub(crate) const KERNEL_PPPOE: u32 = 8;
pub(crate) const KERNEL_ND: u32 = 16;

/// The index of the loopback device, which each network namespace has.
const LOOPBACK: u32 = 1;

/// The loaded program and its maps. Nothing of it runs before [`Program::attach`].
#[derive(Debug)]
pub(crate) struct Program {
    program: OwnedFd,
    edit: OwnedFd,
    renew: OwnedFd,
    /// None where the kernel lets us read nothing of its own.
    observe: Option<OwnedFd>,
    id: u32,
    #[cfg(test)]
    copy_mark: u32,
    table: MapHandle,
    stamps: MapHandle,
    shared_stamps: MapHandle,
    ports: MapHandle,
    settings: MapHandle,
    counts: MapHandle,
    arrivals: MapHandle,
    moved: MapHandle,
    rules: MapHandle,
}

/// The packet path's counts, over all CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) straight: u64,
    pub(crate) redirected: u64,
    pub(crate) bytes: u64,
    pub(crate) copies: u64,
    pub(crate) kernel: Vec<u64>,
}

impl Program {
    /// Loads the object with room for so many stations; `owner` is whose bridge it is for.
    pub(crate) fn load(stations: u32, owner: Owner) -> Result<Program> {
        let finds_devices = |program: Program| match program.device(LOOPBACK) {
            Ok(Some(_)) => Ok(program),
            // The kernel keeps them otherwise than those that this was made for.
            _ => Err(libbpf_rs::Error::from(io::Error::from(io::ErrorKind::Unsupported))),
        };
        let loaded = Program::try_load(stations, owner, true).and_then(finds_devices);
        let loaded = loaded.or_else(|error| {
            // CAP_PERFMON is missing, for one.
            let program = Program::try_load(stations, owner, false)?;
            tracing::warn!(
                "netfilter's rules are followed by their notifications alone, as the packet path \
                 may not read the kernel's: {error}"
            );
            Ok(program)
        });
        loaded.map_err(|error: libbpf_rs::Error| {
            let kind = match error.kind() {
                libbpf_rs::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
                _ => ErrorKind::Unsupported,
            };
            Error::new(kind, format!("the bridge's BPF program does not load: {error:#}"))
        })
    }

    /// `reads_rules` is whether the packet path reads netfilter's rules itself.
    fn try_load(stations: u32, owner: Owner, reads_rules: bool) -> libbpf_rs::Result<Program> {
        let mut storage = MaybeUninit::uninit();
        let mut open = skel::BridgeSkelBuilder::default().open(&mut storage)?;
        // Half full at most: then nearly every station stands in the bucket of its hash.
        let buckets = (stations * 2 / BUCKET_STATIONS).next_power_of_two().max(BUCKETS_TRIED);
        open.maps.table.set_max_entries(buckets)?;
        let copy_mark = rand::random_range(1..=u32::MAX);
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
        let program = skel.progs.cachelane_br.as_fd();
        Ok(Program {
            id: BpfProgram::id_from_fd(program)?,
            #[cfg(test)]
            copy_mark,
            program: program.try_clone_to_owned()?,
            edit: skel.progs.edit.as_fd().try_clone_to_owned()?,
            renew: skel.progs.renew.as_fd().try_clone_to_owned()?,
            observe: match reads_rules {
                true => Some(skel.progs.observe.as_fd().try_clone_to_owned()?),
                false => None,
            },
            table: MapHandle::try_from(&skel.maps.table)?,
            stamps: MapHandle::try_from(&skel.maps.stamps)?,
            shared_stamps: MapHandle::try_from(&skel.maps.shared_stamps)?,
            ports: MapHandle::try_from(&skel.maps.ports)?,
            settings: MapHandle::try_from(&skel.maps.settings)?,
            counts: MapHandle::try_from(&skel.maps.counts)?,
            arrivals: MapHandle::try_from(&skel.maps.arrivals)?,
            moved: MapHandle::try_from(&skel.maps.moved)?,
            rules: MapHandle::try_from(&skel.maps.data_rules)?,
        })
    }

    /// The program's id, as tcx lists it.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Attaches it behind whatever is on the device's ingress, for as long as the link is open.
    pub(crate) fn attach(&self, index: u32) -> io::Result<OwnedFd> {
        tcx::attach(self.program.as_fd(), index, Hook::Ingress)
    }

    /// The ring of keys of stations that were seen on another port.
    pub(crate) fn moved(&self) -> &MapHandle {
        &self.moved
    }

    /// Writes a station. Returns whether there was room.
    pub(crate) fn set_station(&self, mac: Mac, station: Station) -> io::Result<bool> {
        self.edit(EDIT_WRITE, mac, station).map(|(done, _)| done)
    }

    /// How often a station was seen on another port since it was written, and one more; none if
    /// it is not there.
    pub(crate) fn unsettled(&self, mac: Mac) -> io::Result<Option<u32>> {
        let (there, station) = self.edit(EDIT_READ, mac, Station::default())?;
        Ok(there.then_some(station.unsettled))
    }

    /// Settles a station, unless it was seen on another port since `unsettled` was as given.
    /// Returns whether it is settled.
    pub(crate) fn settle(&self, mac: Mac, unsettled: u32) -> io::Result<bool> {
        self.edit(EDIT_SETTLE, mac, Station { place: 0, unsettled }).map(|(done, _)| done)
    }

    /// Removes a station, if it is there.
    pub(crate) fn remove_station(&self, mac: Mac) -> io::Result<()> {
        self.edit(EDIT_REMOVE, mac, Station::default()).map(drop)
    }

    /// Runs the program that edits the table. Returns what it says, and the request's station.
    fn edit(&self, edit: u32, mac: Mac, station: Station) -> io::Result<(bool, Station)> {
        let mut request = Request { key: key(mac), station, edit, reserved: 0 };
        let done = run(&self.edit, &mut request)?;
        Ok((done == 1, request.station))
    }

    /// What time it is for the lease, in jiffies.
    pub(crate) fn now(&self) -> io::Result<u64> {
        let mut renewal = Renewal::default();
        run(&self.renew, &mut renewal)?;
        Ok(renewal.from)
    }

    /// Has the packet path believe what it was told for so many jiffies from then on.
    pub(crate) fn renew(&self, from: u64, length: u32) -> io::Result<()> {
        run(&self.renew, &mut Renewal { from, length: u64::from(length.max(1)) }).map(drop)
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
            run(program, &mut observation)?;
        }
        Ok(observation)
    }

    /// Says which rules leave bridged packets alone; none: no rules that there could be.
    pub(crate) fn believe(&self, rules: Option<Rules>) -> libbpf_rs::Result<()> {
        let never = || Rules { hooks: [u64::MAX; 3], ..Rules::default() };
        let rules = rules.unwrap_or_else(never);
        self.rules.update(&0_u32.to_ne_bytes(), bytes(&rules), MapFlags::ANY)
    }

    pub(crate) fn set_port(&self, slot: u32, port: &Port) -> libbpf_rs::Result<()> {
        self.ports.update(&slot.to_ne_bytes(), bytes(port), MapFlags::ANY)
    }

    #[cfg(test)]
    pub(crate) fn port_flags(&self, slot: u32) -> libbpf_rs::Result<u32> {
        port_flags(&self.ports, slot)
    }

    /// Begins to count the packets that get here from this device.
    pub(crate) fn count_arrivals(&self, index: u32) -> libbpf_rs::Result<()> {
        let nothing = vec![0_u64.to_ne_bytes().to_vec(); libbpf_rs::num_possible_cpus()?];
        self.arrivals.update_percpu(&index.to_ne_bytes(), &nothing, MapFlags::ANY)
    }

    /// Counts them no more.
    pub(crate) fn forget_arrivals(&self, index: u32) -> libbpf_rs::Result<()> {
        self.arrivals.delete(&index.to_ne_bytes())
    }

    /// How many there were.
    pub(crate) fn arrivals(&self, index: u32) -> libbpf_rs::Result<u64> {
        let per_cpu = self.arrivals.lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)?;
        let counts = per_cpu.iter().flatten().filter_map(|count| count.as_slice().try_into().ok());
        Ok(counts.map(u64::from_ne_bytes).fold(0, u64::wrapping_add))
    }

    pub(crate) fn configure(&self, settings: &Settings) -> libbpf_rs::Result<()> {
        self.settings.update(&0_u32.to_ne_bytes(), bytes(settings), MapFlags::ANY)
    }

    pub(crate) fn counts(&self) -> libbpf_rs::Result<Counts> {
        type PerCpu = skel::types::counts;
        let mut sum = Counts { kernel: vec![0; crate::Reason::ALL.len()], ..Counts::default() };
        let per_cpu = self.counts.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)?;
        for one in per_cpu.iter().flatten().filter(|one| one.len() >= size_of::<PerCpu>()) {
            // SAFETY: the length was just checked, any bytes make the counts, and the read asks
            // for no alignment.
            let one = unsafe { std::ptr::read_unaligned(one.as_ptr().cast::<PerCpu>()) };
            sum.straight = sum.straight.wrapping_add(one.straight);
            sum.redirected = sum.redirected.wrapping_add(one.redirected);
            sum.bytes = sum.bytes.wrapping_add(one.bytes);
            sum.copies = sum.copies.wrapping_add(one.copies);
            for (sum, one) in sum.kernel.iter_mut().zip(one.kernel) {
                *sum = sum.wrapping_add(one);
            }
        }
        Ok(sum)
    }

    /// Bytes of kernel memory that the maps take.
    pub(crate) fn memory(&self) -> libbpf_rs::Result<u64> {
        let tables = [&self.table, &self.stamps, &self.shared_stamps];
        let others =
            [&self.ports, &self.settings, &self.counts, &self.arrivals, &self.moved, &self.rules];
        let maps = tables.into_iter().chain(others);
        maps.map(|map| Ok(map.query_fdinfo()?.memlock.unwrap_or(0))).sum()
    }
}

/// What the packet path knows of the port in a slot: `PORT_*`.
pub(crate) fn port_flags(ports: &MapHandle, slot: u32) -> libbpf_rs::Result<u32> {
    let port = ports.lookup(&slot.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
    Ok(port.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes))
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

/// Runs a program of type syscall. Returns what it returns; `context` is what it made of it.
fn run<T: Plain>(program: &OwnedFd, context: &mut T) -> io::Result<u32> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: std::ptr::from_mut(context).cast(),
        ctx_size_in: size_of::<T>() as u32,
        ..Default::default()
    };
    // SAFETY: `options` says its own size and that of the context, which the kernel reads and
    // writes; both outlive the call, and any bytes make a `Plain` value.
    match unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) } {
        0 => Ok(options.retval),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// The generated structs that are written to maps, or that programs are run with: any bytes make
/// one.
trait Plain {}
impl Plain for Observation {}
impl Plain for Port {}
impl Plain for Renewal {}
impl Plain for Request {}
impl Plain for Rules {}
impl Plain for Settings {}

impl PartialEq for Rules {
    fn eq(&self, other: &Rules) -> bool {
        bytes(self) == bytes(other)
    }
}

fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: the structs are plain integers without padding (bridge.h asserts their sizes), so
    // every byte is initialised; the slice lives no longer than the borrow.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells the program this, which it believes for a while.
    fn configure(program: &Program, settings: &Settings) {
        program.configure(settings).expect("it is written");
        let now = program.now().expect("it runs");
        program.renew(now, 1 << 20).expect("it runs");
    }

    /// What the kernel says of a packet, as the test run takes it.
    type Context = skel::types::__sk_buff;

    /// Where a device is that has no rules.
    fn device(program: &Program) -> u64 {
        program.device(LOOPBACK).expect("it is asked for").expect("it is there")
    }

    fn context() -> Context {
        // SAFETY: the kernel's struct is plain integers, and zeroes are what they are by default.
        let context: Context = unsafe { std::mem::zeroed() };
        Context { ifindex: LOOPBACK, ..context }
    }

    /// What becomes of a frame that comes in at the loopback device.
    fn verdict(program: &Program, frame: &[u8], mut context: Context) -> i32 {
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            ctx_in: (&raw mut context).cast(),
            ctx_size_in: size_of::<Context>() as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: `options` says the sizes of what it points to, all of which outlives the call.
        let failed = unsafe {
            libbpf_sys::bpf_prog_test_run_opts(program.program.as_raw_fd(), &raw mut options)
        };
        assert_eq!(failed, 0, "the program runs");
        options.retval as i32
    }

    #[test]
    fn root_an_unverified_gso_packet_takes_the_ports_queue() {
        if !lab::testing::root("root_an_unverified_gso_packet_takes_the_ports_queue") {
            return;
        }
        let (from, to) = (Mac([2, 0, 0, 0, 0, 7]), Mac([2, 0, 0, 0, 0, 8]));
        let program = Program::load(8, Owner::default()).expect("it loads");
        let settings = Settings { active: 1, ..Settings::default() };
        configure(&program, &settings);
        let port = Port { index: LOOPBACK, flags: PORT_IN, ..Port::default() };
        program.set_port(1, &port).expect("it is written");
        let port = Port {
            index: LOOPBACK + 1,
            flags: PORT_OUT | PORT_STRAIGHT,
            max_len: 1514,
            gso_max_segs: 2,
            peer_key: key(to),
            gso_max_size: 201,
            gso_ipv4_max_size: 200,
            device: device(&program),
        };
        program.set_port(2, &port).expect("it is written");
        for (mac, place) in [(from, 1), (to, 2)] {
            assert!(program.set_station(mac, Station { place, unsettled: 0 }).expect("as above"));
        }
        const IPV4: [u8; 2] = [0x08, 0x00];
        const IPV6: [u8; 2] = [0x86, 0xdd];
        // A protocol, the size of a segment, their number, and whether it goes straight.
        for (protocol, gso_size, gso_segs, straight) in [
            (IPV4, 0, 0, true),
            (IPV6, 0, 0, true),
            (IPV6, 100, 1, true),
            (IPV6, 100, 2, true),
            (IPV6, 100, 3, false),
            (IPV6, 100, 0, false),
            (IPV4, 100, 2, false),
        ] {
            let mut frame = [&to.0[..], &from.0, &protocol].concat();
            frame.resize(200, 0);
            let before = program.counts().expect("they are read");
            verdict(&program, &frame, Context { gso_size, gso_segs, ..context() });
            let after = program.counts().expect("they are read");
            let grown = (after.straight - before.straight, after.redirected - before.redirected);
            let expected = if straight { (1, 0) } else { (0, 1) };
            assert_eq!(grown, expected, "{protocol:x?}: {gso_segs} of {gso_size} bytes: {after:?}");
        }
    }

    #[test]
    fn root_a_copy_is_taken_only_of_a_station_that_is_where_it_was() {
        if !lab::testing::root("root_a_copy_is_taken_only_of_a_station") {
            return;
        }
        const NEXT: i32 = -1;
        const SHOT: i32 = 2;
        let program = Program::load(8, Owner::default()).expect("it loads");
        let port = |index, flags| Port { index, flags, ..Port::default() };
        program.set_port(1, &port(LOOPBACK, PORT_COPY)).expect("it is written");
        program.set_port(2, &port(LOOPBACK + 1, PORT_COPY)).expect("it is written");
        let mac = Mac([2, 0, 0, 0, 0, 7]);
        let mut copy = [&[0x01, 0x80, 0xc2, 0, 0, 0x0e], &mac.0[..], &[0; 48]].concat();
        let marked = |mark| Context { mark, ..context() };
        let taken = |copy: &[u8]| verdict(&program, copy, marked(program.copy_mark));
        let group =
            || program.counts().expect("they are read").kernel[crate::Reason::Group as usize];
        assert_eq!(taken(&copy), SHOT, "of nobody");
        for (place, unsettled, expected) in
            [(1, 0, NEXT), (1, 1, SHOT), (2, 0, SHOT), (2, 1, SHOT), (3, 0, SHOT)]
        {
            let station = Station { place, unsettled };
            assert!(program.set_station(mac, station).expect("it is edited"));
            assert_eq!(taken(&copy), expected, "on {place}, unsettled {unsettled}");
            let found = program.unsettled(mac).expect("it is read");
            assert_eq!(found, Some(unsettled), "a copy is no sign of a move");
        }
        // Nor is one taken where the bridge would now forward it.
        assert!(program.set_station(mac, Station { place: 1, unsettled: 0 }).expect("as before"));
        assert_eq!(taken(&copy), NEXT);
        program.set_port(1, &port(LOOPBACK, PORT_REFRESH)).expect("it is written");
        assert_eq!(taken(&copy), SHOT, "copies do harm now");
        // What looks like a copy and is none is a frame like any other.
        assert!(program.set_station(mac, Station { place: 1, unsettled: 1 }).expect("as before"));
        let settings = Settings { active: 1, ..Settings::default() };
        configure(&program, &settings);
        let before = group();
        assert_eq!(verdict(&program, &copy, marked(0)), NEXT);
        assert_eq!(verdict(&program, &copy, marked(program.copy_mark.wrapping_add(1))), NEXT);
        copy[13] = 1;
        assert_eq!(taken(&copy), NEXT);
        copy[13] = 0;
        copy[5] = 0;
        assert_eq!(taken(&copy), NEXT);
        assert_eq!(group() - before, 4);
    }

    #[test]
    fn root_copies_that_can_wait_are_few_and_urgent_ones_are_made() {
        if !lab::testing::root("root_copies_that_can_wait_are_few") {
            return;
        }
        const STATIONS: u32 = 200;
        const COPIES: u32 = 2;
        let program = Program::load(STATIONS + 1, Owner::default()).expect("it loads");
        let address = |number: u32| Mac([2, 0, 0, 0, 1, number as u8]);
        let to = Mac([2, 0, 0, 0, 0, 8]);
        let flags = PORT_IN | PORT_REFRESH | PORT_COPY;
        let port = Port { index: LOOPBACK, flags, ..Port::default() };
        program.set_port(1, &port).expect("it is written");
        let port = Port {
            index: LOOPBACK + 1,
            flags: PORT_OUT,
            max_len: 1514,
            device: device(&program),
            ..Port::default()
        };
        program.set_port(2, &port).expect("it is written");
        let write = |mac, place| program.set_station(mac, Station { place, unsettled: 0 });
        assert!(write(to, 2 | STATIONS << STATION_SLOT_SHIFT).expect("it is edited"));
        for number in 0..STATIONS {
            let place = 1 | number << STATION_SLOT_SHIFT;
            assert!(write(address(number), place).expect("it is edited"));
        }
        // A frame of each; how many copies were made, and how many jiffies passed at most.
        let round = |refresh_every: u32| {
            let settings =
                Settings { active: 1, refresh_every, copies: COPIES, ..Settings::default() };
            configure(&program, &settings);
            let before = program.counts().expect("they are read").copies;
            let begin = std::time::Instant::now();
            for number in 0..STATIONS {
                let mut frame = [&to.0[..], &address(number).0, &[0x88, 0xb5]].concat();
                frame.resize(60, 0);
                verdict(&program, &frame, context());
            }
            let passed = begin.elapsed().as_millis() as u64 + 1;
            (program.counts().expect("they are read").copies - before, passed)
        };
        assert_eq!(round(1).0, u64::from(STATIONS), "never shown to the kernel");
        let (copies, passed) = round(1 << 30);
        // Each CPU that the test ran on has its own share, and a jiffy may be a millisecond.
        let cpus = std::thread::available_parallelism().expect("CPUs").get() as u64;
        let most = u64::from(COPIES) * (passed + 1) * cpus;
        assert!((1..=most).contains(&copies), "{copies} copies in {passed} ms");
    }

    #[test]
    fn root_nobody_has_address_zero() {
        if !lab::testing::root("root_nobody_has_address_zero") {
            return;
        }
        let program = Program::load(8, Owner::default()).expect("it loads");
        let nobody = Mac([0; 6]);
        let station = Station { place: 1, unsettled: 1 };
        assert_eq!(program.unsettled(nobody).expect("it is read"), None);
        assert!(!program.set_station(nobody, station).expect("it is edited"));
        assert!(!program.settle(nobody, 0).expect("it is edited"));
    }

    /// Addresses as makers and programs give them out: one after another, in any of the bytes.
    #[test]
    fn root_addresses_in_a_row_find_room() {
        if !lab::testing::root("root_addresses_in_a_row_find_room") {
            return;
        }
        const STATIONS: u32 = 8192;
        for byte in 0..=4 {
            for _ in 0..8 {
                let program = Program::load(STATIONS, Owner::default()).expect("it loads");
                let address = |number: u32| {
                    let mut mac = [2, 0x63, 0, 0, 0, 0];
                    mac[byte..byte + 2].copy_from_slice(&(number as u16).to_be_bytes());
                    Mac(mac)
                };
                let mut left_out = 0;
                for number in 1..=STATIONS {
                    let station = Station { place: number, unsettled: 1 };
                    let written = program.set_station(address(number), station);
                    left_out += u32::from(!written.expect("it is edited"));
                }
                // Half full as it then is, a few find their eight lines full.
                assert!(left_out <= STATIONS / 200, "{left_out} counting in byte {byte}");
                let found = (1..=STATIONS).filter(|number| {
                    program.unsettled(address(*number)).expect("it is read").is_some()
                });
                assert_eq!(found.count() as u32, STATIONS - left_out);
            }
        }
    }
}

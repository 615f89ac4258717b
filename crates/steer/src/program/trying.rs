//! Runs the programs on given input, for tests.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use libbpf_sys::bpf_test_run_opts;

use super::{Own, run, skel};

pub(crate) use skel::types::{
    flow_set as FlowSet, passed as Passed, poll as Poll, record_set as RecordSet, sent as Sent,
    taken as Taken, tried_record as TriedRecord, tuple as Tuple,
};

/// Programs that are there for tests only, and maps that nobody else looks at.
#[derive(Debug)]
pub(crate) struct Trying {
    pub(crate) try_record: OwnedFd,
    pub(crate) try_taken: OwnedFd,
    pub(crate) records: MapHandle,
    pub(crate) flows: MapHandle,
    pub(crate) sent: MapHandle,
    pub(crate) taken: MapHandle,
    pub(crate) passed: MapHandle,
    bss: MapHandle,
    own: MapHandle,
}

/// A packet, as an XDP program gets it and leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct XdpPacket {
    pub(crate) data: Vec<u8>,
    /// In front of it.
    pub(crate) metadata: Vec<u8>,
    /// The device and the queue that it came from; none is the loopback device.
    pub(crate) from: Option<(u32, u32)>,
}

/// `struct xdp_md` of linux/bpf.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct XdpMd {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

impl Trying {
    pub(super) fn new(skel: &skel::SteerSkel<'_>) -> libbpf_rs::Result<Self> {
        Ok(Self {
            try_record: skel.progs.try_record.as_fd().try_clone_to_owned()?,
            try_taken: skel.progs.try_taken.as_fd().try_clone_to_owned()?,
            records: MapHandle::try_from(&skel.maps.records)?,
            flows: MapHandle::try_from(&skel.maps.flows)?,
            sent: MapHandle::try_from(&skel.maps.sent)?,
            taken: MapHandle::try_from(&skel.maps.taken)?,
            passed: MapHandle::try_from(&skel.maps.passed)?,
            bss: MapHandle::try_from(&skel.maps.bss)?,
            own: MapHandle::try_from(&skel.maps.own)?,
        })
    }

    /// The poll that a CPU is in.
    pub(crate) fn poll(&self, cpu: u32) -> Poll {
        let all = self.own.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let all = all.expect("the polls are read").expect("there is one element");
        super::cast::<Own>(&all[cpu as usize]).expect("an element is one struct").poll
    }

    /// Has it be this tick.
    pub(crate) fn set_time(&self, time_to_try: u64) {
        let before: skel::types::bss = super::read(&self.bss, 0).expect("it is read");
        super::write(&self.bss, 0, &skel::types::bss { time_to_try, ..before }).expect("written");
    }

    /// Forgets what CPUs have for themselves.
    pub(crate) fn reset_own(&self) {
        let cpus = libbpf_rs::num_possible_cpus().expect("there are CPUs");
        let values = vec![vec![0; size_of::<Own>()]; cpus];
        self.own
            .update_percpu(&0_u32.to_ne_bytes(), &values, MapFlags::ANY)
            .expect("it is written");
    }
}

/// Runs an XDP program. Returns its verdict, and the packet as it left it.
pub(crate) fn run_xdp(program: BorrowedFd<'_>, packet: &XdpPacket) -> io::Result<(u32, XdpPacket)> {
    let input = [packet.metadata.as_slice(), packet.data.as_slice()].concat();
    let mut output = vec![0_u8; input.len() + 512];
    let (index, queue) = packet.from.unwrap_or_default();
    let context = XdpMd {
        data: packet.metadata.len() as u32,
        data_end: input.len() as u32,
        ingress_ifindex: index,
        rx_queue_index: queue,
        ..XdpMd::default()
    };
    let mut after = XdpMd::default();
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: input.as_ptr().cast(),
        data_size_in: input.len() as u32,
        data_out: output.as_mut_ptr().cast(),
        data_size_out: output.len() as u32,
        ctx_in: (&raw const context).cast(),
        ctx_size_in: size_of::<XdpMd>() as u32,
        ctx_out: (&raw mut after).cast(),
        ctx_size_out: size_of::<XdpMd>() as u32,
        ..Default::default()
    };
    let verdict = run(program, &mut options)?;
    output.truncate(options.data_size_out as usize);
    let data = output.split_off(after.data as usize);
    Ok((verdict, XdpPacket { data, metadata: output, from: packet.from }))
}

/// Runs a raw tracepoint's program on this CPU.
pub(crate) fn run_tracepoint(program: BorrowedFd<'_>, args: &[u64]) -> io::Result<()> {
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: args.as_ptr().cast(),
        ctx_size_in: size_of_val(args) as u32,
        ..Default::default()
    };
    run(program, &mut options).map(drop)
}

/// Records as if a socket of this flow had taken on this CPU.
pub(crate) fn run_record(program: BorrowedFd<'_>, tried: &mut TriedRecord) -> io::Result<()> {
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: std::ptr::from_mut(tried).cast(),
        ctx_size_in: size_of::<TriedRecord>() as u32,
        ..Default::default()
    };
    run(program, &mut options).map(drop)
}

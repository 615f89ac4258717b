//! Runs the programs on given input, for tests.

use std::io;

use bpf::{Packet, Program};
use libbpf_sys::xdp_md;

use super::{Loaded, Own, skel};

pub(crate) use skel::types::{
    flow_set as FlowSet, passed as Passed, poll as Poll, record_set as RecordSet, sent as Sent,
    taken as Taken, tried_record as TriedRecord, tuple as Tuple,
};

/// A packet, as an XDP program gets it and leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct XdpPacket {
    pub(crate) data: Vec<u8>,
    /// In front of it.
    pub(crate) metadata: Vec<u8>,
    /// The device and the queue that it came from; none is the loopback device.
    pub(crate) from: Option<(u32, u32)>,
}

impl Loaded {
    /// The poll that a CPU is in.
    pub(crate) fn poll(&self, cpu: u32) -> Poll {
        let all: Vec<Own> = self.maps.own.per_cpu(&0_u32).expect("the polls are read");
        all[cpu as usize].poll
    }

    /// Has it be this tick.
    pub(crate) fn set_time(&self, time_to_try: u64) {
        const { assert!(std::mem::offset_of!(skel::types::bss, time_to_try) == 0) };
        let [_, our_net]: [u64; 2] = super::read(&self.maps.bss, 0).expect("it is read");
        super::write(&self.maps.bss, 0, &[time_to_try, our_net]).expect("it is written");
    }

    /// Forgets what CPUs have for themselves.
    pub(crate) fn reset_own(&self) {
        self.maps.own.set_per_cpu(&0_u32, &Own::default()).expect("it is written");
    }
}

/// Runs an XDP program. Returns its verdict, and the packet as it left it.
pub(crate) fn run_xdp(program: &Program, packet: &XdpPacket) -> io::Result<(u32, XdpPacket)> {
    let data = [packet.metadata.as_slice(), packet.data.as_slice()].concat();
    let (index, queue) = packet.from.unwrap_or_default();
    let context = xdp_md {
        data: packet.metadata.len() as u32,
        data_end: data.len() as u32,
        ingress_ifindex: index,
        rx_queue_index: queue,
        ..xdp_md::default()
    };
    let mut given = Packet { data, context };
    let verdict = program.run_on(&mut given)?;
    let Packet { data: mut metadata, context: after } = given;
    let data = metadata.split_off(after.data as usize);
    Ok((verdict, XdpPacket { data, metadata, from: packet.from }))
}

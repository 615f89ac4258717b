//! Programs that are run, and what they are compared with.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixDatagram;

use libbpf_rs::{MapHandle, MapType};
use libc::sock_filter;
use proptest::prelude::*;

use super::super::code::{self, instruction};
use super::super::{MATCH, NO_MATCH, translate};
use crate::{Expression, Map, Packet, Program, attach_filter};

/// What programs hand packets on to: one returns `XDP_TX` for those that match, one `XDP_DROP`.
pub(super) struct Next {
    pub(super) map: Map,
    _programs: [Program; 2],
    multi_buffer: bool,
}

impl Next {
    pub(super) fn new(multi_buffer: bool) -> Next {
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let map = MapHandle::create(MapType::ProgArray, Some("next"), 4, 4, 2, &options);
        let map = Map::from(map.expect("a map"));
        let answers = [(MATCH, libbpf_sys::XDP_TX), (NO_MATCH, libbpf_sys::XDP_DROP)];
        let programs = answers.map(|(number, answer)| {
            let instructions = [
                instruction(code::ALU | code::MOV, 0, 0, 0, answer.cast_signed()),
                instruction(code::JMP | code::EXIT, 0, 0, 0, 0),
            ];
            let program = Program::load_xdp(c"answer", &instructions, multi_buffer);
            let program = program.unwrap_or_else(|error| panic!("{error:?}"));
            let fd = program.as_fd().as_raw_fd();
            map.set(&number.cast_unsigned(), &fd).expect("it takes it");
            program
        });
        Next { map, _programs: programs, multi_buffer }
    }

    pub(super) fn program(&self, steps: &[sock_filter]) -> Program {
        let instructions = translate(steps, self.map.as_fd()).expect("a program");
        let loaded = Program::load_xdp(c"filter", &instructions, self.multi_buffer);
        loaded.unwrap_or_else(|error| panic!("{error:?}: {steps:?}"))
    }
}

/// Whether a program takes it for a match.
pub(super) fn is_match(program: &Program, packet: &[u8]) -> bool {
    let context = libbpf_sys::xdp_md { data_end: packet.len() as u32, ..Default::default() };
    let mut packet = Packet { data: packet.to_vec(), context };
    match program.run_on(&mut packet).expect("it runs") {
        libbpf_sys::XDP_TX => true,
        libbpf_sys::XDP_DROP => false,
        other => panic!("verdict {other}"),
    }
}

/// The kernel's classic BPF, on what one end of a pair of sockets sends to the other.
pub(super) struct Kernel {
    from: UnixDatagram,
    to: UnixDatagram,
}

impl Kernel {
    /// None for steps that the kernel refuses.
    pub(super) fn new(steps: &[sock_filter]) -> Option<Kernel> {
        let (from, to) = UnixDatagram::pair().expect("sockets");
        to.set_nonblocking(true).expect("a socket");
        attach_filter(to.as_fd(), &mut steps.to_vec()).ok()?;
        Some(Kernel { from, to })
    }

    pub(super) fn is_match(&self, packet: &[u8]) -> bool {
        self.from.send(packet).expect("sent");
        match self.to.recv(&mut [0; 1]) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Whether programs, libpcap and the kernel agree about packets; counts those that match. The kernel is not
/// asked if the steps are not `tame`.
pub(super) fn agree(
    nexts: &[Next],
    steps: &[sock_filter],
    packets: &[Vec<u8>],
    tame: bool,
) -> Result<usize, TestCaseError> {
    let programs: Vec<Program> = nexts.iter().map(|next| next.program(steps)).collect();
    let filter = Expression::of(String::new(), steps.to_vec());
    let kernel = if tame { Kernel::new(steps) } else { None };
    prop_assert!(!tame || kernel.is_some(), "the kernel refuses it: {:?}", steps);
    let mut matches = 0;
    for packet in packets {
        let expected = filter.matches(packet, packet.len());
        for program in &programs {
            prop_assert_eq!(is_match(program, packet), expected, "libpcap; {:?}", packet);
        }
        if let Some(kernel) = &kernel {
            prop_assert_eq!(kernel.is_match(packet), expected, "the kernel; {:?}", packet);
        }
        matches += usize::from(expected);
    }
    Ok(matches)
}

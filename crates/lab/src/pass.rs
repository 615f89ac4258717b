//! An XDP program that lets every packet pass.

use std::os::fd::{AsFd, BorrowedFd};

use bpf::{Object, Program};

use crate::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/pass.rs"));

/// A loaded XDP program that lets every packet pass, to be put on a device.
///
/// For measuring on a veth what happens behind its driver. With any program, it handles each packet
/// as a network card's driver does, in a buffer of its own; without, it hands over the socket buffer
/// of whoever sent it. So a program that is compared with no program has the cost of that against
/// it, which on a card it does not have; compared with this one it has not.
#[derive(Debug)]
pub struct PassProgram(Program);

impl PassProgram {
    /// Loads it. It takes packets in several buffers.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`](crate::ErrorKind::NotPermitted) without root;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) where BPF is not to be had.
    pub fn load() -> Result<Self> {
        let loaded =
            Object::load(OBJECT).map_err(Into::into).and_then(|object| object.program("pass"));
        Ok(Self(loaded.map_err(|error| Error::io("the program that passes all", error))?))
    }
}

impl AsFd for PassProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use bpf::xdp;

    use super::*;
    use crate::{Lab, LinkOptions, traffic::index};

    #[test]
    fn root_packets_pass() {
        if !crate::testing::root("root_packets_pass") {
            return;
        }
        let lab = Lab::new("pass").unwrap();
        let hosts = [lab.host("a").unwrap(), lab.host("b").unwrap()];
        let options = LinkOptions { wire_like: true, ..LinkOptions::default() };
        let link = lab.link(&hosts[0], &hosts[1], options).unwrap();
        let program = PassProgram::load().unwrap();
        let index = index(&link.b.host, &link.b.device).unwrap();
        let attach = || xdp::attach(program.as_fd(), index, xdp::Place::Native);
        let _attached = link.b.host.run(attach).unwrap().unwrap();
        assert!(link.b.host.ip(["link", "show", &link.b.device]).unwrap().contains("xdp"));
        let to = link.b.socket(4000);
        let listener = link.b.host.run(|| std::net::TcpListener::bind(to)).unwrap().unwrap();
        let limit = std::time::Duration::from_secs(5);
        link.a.host.run(|| std::net::TcpStream::connect_timeout(&to, limit)).unwrap().unwrap();
        drop(listener);
    }
}

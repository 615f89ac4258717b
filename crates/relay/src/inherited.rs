//! Listening sockets that somebody else has opened: a service manager, or the relay before this one.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::net::{SocketType, sockopt};

use crate::{Error, socket};

/// Who a listening socket belongs to, whoever serves it at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The relay in charge, which ends it when it ends.
    Relay,
    /// A service manager, which keeps it open for the next relay.
    Manager,
}

/// A TCP socket that listens already, for [`Relay::start_on`](crate::Relay::start_on).
#[derive(Debug)]
pub struct Inherited {
    pub(crate) socket: OwnedFd,
    pub(crate) addr: SocketAddr,
    pub(crate) owner: Owner,
}

impl Inherited {
    /// A socket of a service manager, which has it open as well: a relay that ends lets it be.
    ///
    /// # Errors
    /// It is no TCP socket that listens.
    pub fn of_manager(socket: OwnedFd) -> Result<Inherited, Error> {
        Inherited::new(socket, Owner::Manager)
    }

    /// The same socket once more.
    ///
    /// # Errors
    /// A lack of open files.
    pub fn duplicate(&self) -> Result<Inherited, Error> {
        let socket = rustix::io::fcntl_dupfd_cloexec(&self.socket, 0)
            .map_err(|e| Error::io("cannot duplicate a listening socket", e))?;
        Ok(Inherited { socket, ..*self })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn new(socket: OwnedFd, owner: Owner) -> Result<Inherited, Error> {
        let no_listener = || Error::invalid("it is no TCP socket that listens");
        let is_stream = sockopt::socket_type(&socket).is_ok_and(|t| t == SocketType::STREAM);
        let listens = sockopt::socket_acceptconn(&socket).is_ok_and(|listens| listens);
        if !is_stream || !listens {
            return Err(no_listener());
        }
        // It has one of another family where it is no socket of IP.
        let addr = socket::local_addr(&socket).map_err(|_| no_listener())?;
        let fail = |e| Error::io(format!("cannot take over a socket on {addr}"), e);
        rustix::io::ioctl_fionbio(&socket, true).map_err(fail)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(fail)?;
        Ok(Inherited { socket, addr, owner })
    }
}

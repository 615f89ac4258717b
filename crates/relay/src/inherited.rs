//! Listening sockets that somebody else has opened: a service manager, or the relay before this one.

use std::os::fd::OwnedFd;

use rustix::net::{SocketType, sockopt};

use crate::Error;
use crate::addr::Addr;
use crate::listeners::{FileId, SocketFile};

/// Who a listening socket belongs to, whoever serves it at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The relay in charge, which ends it when it ends.
    Relay,
    /// A service manager, which keeps it open for the next relay.
    Manager,
}

/// A duplicate of a listening socket, for another relay.
#[derive(Debug)]
pub(crate) struct Duplicate {
    pub(crate) socket: OwnedFd,
    pub(crate) owner: Owner,
    /// What is at the path of a Unix socket, if it is there with the relay.
    pub(crate) file: Option<FileId>,
}

/// A socket that listens already, of TCP or a Unix stream socket with a name, for [`Relay::start_on`](crate::Relay::start_on).
#[derive(Debug)]
pub struct Inherited {
    pub(crate) socket: OwnedFd,
    pub(crate) addr: Addr,
    pub(crate) owner: Owner,
    /// What whoever is in charge of it removes when it ends.
    pub(crate) file: Option<SocketFile>,
}

impl Inherited {
    /// A socket of a service manager, which has it open as well: a relay that ends lets it be.
    ///
    /// # Errors
    /// It is no stream socket that listens.
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
        Ok(Inherited {
            socket,
            addr: self.addr.clone(),
            owner: self.owner,
            file: self.file.clone(),
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// The socket by itself, for somebody else than a relay to serve.
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// It is of another relay, which has bound it to this file.
    pub(crate) fn with_file(mut self, id: Option<FileId>) -> Inherited {
        if let (Addr::Unix(addr), Some(id)) = (&self.addr, id) {
            self.file = SocketFile::of(addr, id);
        }
        self
    }

    pub(crate) fn new(socket: OwnedFd, owner: Owner) -> Result<Inherited, Error> {
        let no_listener = || Error::invalid("it is no stream socket that listens");
        let is_stream = sockopt::socket_type(&socket).is_ok_and(|t| t == SocketType::STREAM);
        let listens = sockopt::socket_acceptconn(&socket).is_ok_and(|listens| listens);
        if !is_stream || !listens {
            return Err(no_listener());
        }
        // Of another family than IP and Unix, or without a name, it has none.
        let addr = Addr::of(&socket).map_err(|_| no_listener())?;
        let fail = |e| Error::io(format!("cannot take over a socket on {addr}"), e);
        rustix::io::ioctl_fionbio(&socket, true).map_err(fail)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(fail)?;
        Ok(Inherited { socket, addr, owner, file: None })
    }
}

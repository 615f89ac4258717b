//! The listening sockets of a relay: claimed for it alone or taken over, dealt out to its workers,
//! let go or handed on.
//!
//! **A claim.** Sockets of one address that all have `SO_REUSEPORT` listen together, also those of
//! two relays, which would split the clients between them. So the first socket of a relay is bound
//! and listens without it: the kernel lets no second one do that, and lets it do so beside no other
//! listener. Only then does it get `SO_REUSEPORT`, so that the other workers' sockets can join.
//!
//! **A queue each.** The kernel deals clients out to the sockets of a group as they come, and a
//! client stays in the queue of its socket: to close one resets whom it holds. So a socket is closed
//! only when it is empty and nobody can come any more ([`Listener::refuse_new`]), all of them live
//! as long as the relay lets clients in, also when a worker ends early, and a successor gets all.
//!
//! **Whose it is.** A socket may be open in several processes: a service manager's, a predecessor's,
//! a successor's that has yet to take over. The relay that is in charge of it ends it, for everybody
//! (`shutdown`): a process that has it open and is stopped must not keep a queue open that nobody
//! serves. The others only close it. A service manager's is never ended.
//!
//! **Unix sockets.** There is no `SO_REUSEPORT` of them, so all workers share one, as they share a
//! service manager's. A path is claimed by its file: see [`file`].

mod file;
mod listener;

use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::addr::Addr;
use crate::config::Listen;
use crate::inherited::{Duplicate, Inherited, Owner};
use crate::{Error, ErrorKind, socket, sockopt as tcp};
pub(crate) use file::{FileId, SocketFile};
pub(crate) use listener::Listener;
use listener::Queue;

/// How often a claim is tried when another process tries the same at the same moment.
const CLAIMS: u32 = 100;

/// Gives a socket the options that accepted ones inherit from it.
pub(crate) type SetUp<'a> = &'a dyn Fn(&OwnedFd, &Addr) -> rustix::io::Result<()>;

/// Sockets for another relay.
#[derive(Debug)]
pub(crate) struct Duplicates {
    pub(crate) sockets: Vec<Duplicate>,
    /// What they are duplicates of.
    pub(crate) of: Vec<Weak<Listener>>,
}

/// One worker's.
pub(crate) type Own = Vec<Arc<Listener>>;

/// All of a relay's.
#[derive(Debug)]
pub(crate) struct Listeners {
    groups: Vec<Group>,
    backlog: i32,
    is_in_charge: bool,
    /// Those that are the workers' alone.
    retired: Vec<Weak<Listener>>,
}

/// Those on one address.
#[derive(Debug)]
struct Group {
    addr: Addr,
    owner: Owner,
    is_inherited: bool,
    /// Bound, and not yet listening.
    claim: Option<Claim>,
    /// Taken over, and not yet dealt out.
    undealt: Vec<Arc<Listener>>,
    sockets: Vec<Arc<Listener>>,
}

/// The first socket on an address, before it listens.
#[derive(Debug)]
enum Claim {
    Ip(OwnedFd),
    Unix(file::Claim),
}

impl Listeners {
    /// Takes the inherited sockets, and binds one to each of `listen` that none of them has, as no
    /// other listener may be; with port 0 the kernel chooses one. Nobody new can connect yet.
    ///
    /// # Errors
    /// An address in use or not of this host; a path that cannot be had.
    pub(crate) fn claim(
        listen: &[Listen],
        inherited: Vec<Inherited>,
        backlog: i32,
    ) -> Result<Listeners, Error> {
        let mut groups: Vec<Group> = Vec::new();
        for Inherited { socket, addr, owner, file } in inherited {
            let known = groups.iter().position(|group| group.addr == addr);
            let number = known.unwrap_or_else(|| {
                groups.push(Group { is_inherited: true, ..Group::of(addr.clone(), owner) });
                groups.len() - 1
            });
            groups[number].undealt.push(match addr.is_unix() {
                true => Listener::of_unix(socket, number, false, Queue::Foreign, file),
                false => Listener::new(socket, number, false, Queue::Foreign),
            });
        }
        for one in listen {
            if groups.iter().all(|group| group.addr != one.addr) {
                let (claim, addr) = Claim::new(one)?;
                groups.push(Group { claim: Some(claim), ..Group::of(addr, Owner::Relay) });
            }
        }
        Ok(Listeners { groups, backlog, is_in_charge: false, retired: Vec::new() })
    }

    /// Checks what [`claim`](Self::claim) checks of those that nobody passes, and changes nothing.
    ///
    /// # Errors
    /// As of [`claim`](Self::claim).
    pub(crate) fn check(listen: &[Listen]) -> Result<(), Error> {
        // Together, as they would be bound.
        let mut bound = Vec::new();
        for one in listen {
            match &one.addr {
                Addr::Unix(addr) => file::check(addr)?,
                Addr::Ip(_) => bound.push(Claim::new(one)?),
            }
        }
        Ok(())
    }

    /// The addresses, with the ports that the kernel chose.
    pub(crate) fn addrs(&self) -> impl Iterator<Item = &Addr> {
        self.groups.iter().map(|group| &group.addr)
    }

    /// Listeners for each of `workers` more workers, on which clients wait from now on: not yet on
    /// those beside sockets that another relay is in charge of.
    ///
    /// # Errors
    /// An address that another process listens on by now; a lack of open files. Nothing has changed
    /// then.
    pub(crate) fn deal(&mut self, workers: usize, set_up: SetUp) -> Result<Vec<Own>, Error> {
        // Whoever listens has clients to lose: what may fail comes first.
        let bind = |group: &mut Group| group.bind(workers, set_up);
        let bound = self.groups.iter_mut().map(bind).collect::<Result<Vec<_>, _>>()?;
        let mut opened = Vec::new();
        for (number, (group, bound)) in self.groups.iter().zip(bound).enumerate() {
            let listen = |bound: Bound| match bound {
                Bound::Another(socket) if group.is_inherited && !self.is_in_charge => {
                    Ok(Listener::new(socket, number, false, Queue::Own))
                }
                Bound::Another(socket) => {
                    rustix::net::listen(&socket, self.backlog)
                        .map_err(|e| Error::io(format!("cannot listen on {}", group.addr), e))?;
                    Ok(Listener::new(socket, number, true, Queue::Own))
                }
                Bound::Claim(claim) => claim.listen(&group.addr, number, self.backlog, set_up),
            };
            opened.push(bound.into_iter().map(listen).collect::<Result<Own, Error>>()?);
        }
        let mut hands = vec![Own::new(); workers];
        for (group, opened) in self.groups.iter_mut().zip(opened) {
            let already = group.sockets.len();
            group.sockets.append(&mut group.undealt);
            group.sockets.extend(opened);
            let fresh = &group.sockets[already..];
            // Each that is new to somebody; if that does not suffice, several workers share one.
            let dealt = if fresh.is_empty() { &group.sockets } else { fresh };
            let count = fresh.len().max(workers);
            for (index, socket) in dealt.iter().cycle().take(count).enumerate() {
                hands[index % workers].push(Arc::clone(socket));
            }
        }
        Ok(hands)
    }

    /// Duplicates of all sockets on these addresses, for a successor.
    ///
    /// # Errors
    /// A lack of open files.
    pub(crate) fn duplicates(&self, addrs: &[Addr]) -> Result<Duplicates, Error> {
        let (mut sockets, mut of) = (Vec::new(), Vec::new());
        let wanted = self.groups.iter().filter(|group| addrs.contains(&group.addr));
        for (group, socket) in wanted.flat_map(|g| g.sockets.iter().map(move |s| (g, s))) {
            let duplicate = rustix::io::fcntl_dupfd_cloexec(&socket.socket, 0)
                .map_err(|e| Error::io("cannot duplicate a listening socket", e))?;
            let file = socket.file().map(|file| file.id());
            sockets.push(Duplicate { socket: duplicate, owner: group.owner, file });
            of.push(Arc::downgrade(socket));
        }
        Ok(Duplicates { sockets, of })
    }

    pub(crate) fn all_listen(&self) -> bool {
        self.all().all(|socket| socket.listens())
    }

    /// This relay is in charge of the sockets that it has taken over: their options become its own, and
    /// clients wait on those beside them too.
    ///
    /// # Errors
    /// One of them does not listen any more.
    pub(crate) fn take_charge(&mut self, set_up: SetUp) -> Result<(), Error> {
        let inherited = self.groups.iter().filter(|group| group.is_inherited);
        let sockets = inherited.flat_map(|g| g.sockets.iter().map(move |s| (g, s)));
        // Those beside them are new, and do not listen yet.
        let (taken_over, new): (Vec<_>, Vec<_>) = sockets.partition(|(_, s)| s.is_taken_over());
        if let Some((Group { addr, .. }, _)) = taken_over.iter().find(|(_, s)| !s.listens()) {
            let message = format!("the socket on {addr} that was taken over has been closed");
            return Err(Error::new(ErrorKind::AddressNotAvailable, message));
        }
        for (Group { addr, .. }, socket) in new {
            rustix::net::listen(&socket.socket, self.backlog)
                .map_err(|e| Error::io(format!("cannot listen on {addr}"), e))?;
            socket.put_in_charge(true);
        }
        for (group, socket) in taken_over {
            // What cannot be set stays as it was. The filter is one that drops SYNs, if any.
            let _ = tcp::detach_filter(&socket.socket);
            let _ = prepare(&socket.socket, &group.addr, set_up);
            let _ = rustix::net::listen(&socket.socket, self.backlog);
            socket.put_in_charge(group.owner == Owner::Relay);
            socket.is_renewed();
        }
        self.is_in_charge = true;
        Ok(())
    }

    /// Clients that wait to be accepted.
    pub(crate) fn waiting(&self) -> usize {
        let retired = self.retired.iter().filter_map(Weak::upgrade).map(|one| one.waiting());
        self.all().map(|one| one.waiting()).chain(retired).sum()
    }

    /// Lets nobody new come, and leaves the sockets to the workers, who close them when those who
    /// are there have been accepted. Sockets that others are in charge of are closed at once.
    pub(crate) fn retire(&mut self) {
        for listener in self.all().filter(|listener| listener.is_in_charge()) {
            if let Err(e) = listener.refuse_new() {
                tracing::warn!("new clients keep coming while those who wait are let in: {e}");
            }
        }
        for group in &mut self.groups {
            group.claim = None;
            let sockets = group.undealt.drain(..).chain(group.sockets.drain(..));
            self.retired.extend(sockets.map(|socket| Arc::downgrade(&socket)));
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Listener>> {
        self.groups.iter().flat_map(|group| &group.sockets)
    }
}

impl Group {
    fn of(addr: Addr, owner: Owner) -> Group {
        let (undealt, sockets) = Default::default();
        Group { addr, owner, is_inherited: false, claim: None, undealt, sockets }
    }

    /// A socket for each of `workers` for whom there is none that was taken over.
    fn bind(&mut self, workers: usize, set_up: SetUp) -> Result<Vec<Bound>, Error> {
        let mut bound = Vec::new();
        if self.owner == Owner::Manager {
            return Ok(bound);
        }
        bound.extend(self.claim.take().map(Bound::Claim));
        let Addr::Ip(addr) = self.addr else { return Ok(bound) };
        while bound.len() + self.undealt.len() < workers {
            let socket = match socket::bind(addr, true) {
                // Another user's, which a socket of ours may not join.
                Err(e) if self.is_inherited && e.kind() == ErrorKind::AddressInUse => break,
                socket => socket?,
            };
            prepare(&socket, &self.addr, set_up)?;
            bound.push(Bound::Another(socket));
        }
        Ok(bound)
    }
}

fn prepare(socket: &OwnedFd, addr: &Addr, set_up: SetUp) -> Result<(), Error> {
    set_up(socket, addr).map_err(|e| Error::io(format!("cannot set up a socket for {addr}"), e))
}

/// A socket that is about to listen.
enum Bound {
    /// The first on its address.
    Claim(Claim),
    Another(OwnedFd),
}

impl Claim {
    /// And where it is.
    fn new(listen: &Listen) -> Result<(Claim, Addr), Error> {
        match &listen.addr {
            Addr::Unix(addr) => {
                let claim = file::Claim::new(listen, addr)?;
                Ok((Claim::Unix(claim), listen.addr.clone()))
            }
            Addr::Ip(addr) => {
                let claim = socket::bind(*addr, false)?;
                let addr = Addr::of(&claim)
                    .map_err(|e| Error::io(format!("cannot listen on {addr}"), e))?;
                Ok((Claim::Ip(claim), addr))
            }
        }
    }

    fn listen(
        self,
        addr: &Addr,
        number: usize,
        backlog: i32,
        set_up: SetUp,
    ) -> Result<Arc<Listener>, Error> {
        let fail = |e: Errno| Error::io(format!("cannot listen on {addr}"), e);
        match (self, addr) {
            (Claim::Unix(claim), _) => {
                let (socket, file) = claim.listen(backlog).map_err(fail)?;
                Ok(Listener::of_unix(socket, number, true, Queue::Own, file))
            }
            (Claim::Ip(claim), Addr::Ip(ip)) => {
                let bind = || socket::bind(*ip, false);
                let prepare = |socket: &OwnedFd| prepare(socket, addr, set_up);
                let socket = listen_alone(claim, backlog, bind, prepare, fail)?;
                sockopt::set_socket_reuseport(&socket, true).map_err(fail)?;
                Ok(Listener::new(socket, number, true, Queue::Own))
            }
            (Claim::Ip(_), Addr::Unix(_)) => Err(fail(Errno::AFNOSUPPORT)),
        }
    }
}

/// Has a socket listen that is to be the only one on its address, or another one that `bind` makes.
fn listen_alone(
    mut claim: OwnedFd,
    backlog: i32,
    bind: impl Fn() -> Result<OwnedFd, Error>,
    prepare: impl Fn(&OwnedFd) -> Result<(), Error>,
    fail: impl Fn(Errno) -> Error,
) -> Result<OwnedFd, Error> {
    for left in (0..CLAIMS).rev() {
        prepare(&claim)?;
        match rustix::net::listen(&claim, backlog) {
            // If two try at once, the kernel may refuse both. One of them is to win.
            Err(Errno::ADDRINUSE) if left > 0 => {
                drop(claim);
                let moment = RandomState::new().hash_one(left) % 8_000;
                std::thread::sleep(Duration::from_micros(moment));
                claim = bind()?;
            }
            result => {
                result.map_err(&fail)?;
                break;
            }
        }
    }
    Ok(claim)
}

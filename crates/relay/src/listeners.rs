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

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{
    AtomicBool, AtomicU8,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{Shutdown, sockopt};

use crate::inherited::{Inherited, Owner};
use crate::{Error, ErrorKind, socket, sockopt as tcp};

/// How often a claim is tried when another process tries the same at the same moment.
const CLAIMS: u32 = 100;

/// Gives a socket the options that accepted ones inherit from it.
pub(crate) type SetUp<'a> = &'a dyn Fn(&OwnedFd, SocketAddr) -> rustix::io::Result<()>;

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    /// Which of the relay's addresses it is on.
    pub(crate) number: usize,
    /// Whether this relay ends it. It is set before the stage changes, which workers read first.
    in_charge: AtomicBool,
    /// A [`Queue`]. Relaxed: at worst an accepted socket is set up once more than it need be.
    queue: AtomicU8,
}

/// Whether those in its queue have the options that this relay gives its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Queue {
    /// No: it has somebody else's.
    Foreign,
    /// Those who come from now on do.
    Renewed,
    /// All.
    Own,
}

impl Listener {
    fn new(socket: OwnedFd, number: usize, in_charge: bool, queue: Queue) -> Arc<Listener> {
        let (in_charge, queue) = (in_charge.into(), (queue as u8).into());
        Arc::new(Listener { socket, number, in_charge, queue })
    }

    /// Clients that have completed their handshake and wait to be accepted.
    pub(crate) fn waiting(&self) -> usize {
        tcp::accept_queue(&self.socket).unwrap_or(0)
    }

    /// Whether its queue is for this relay to empty before it is closed.
    pub(crate) fn is_in_charge(&self) -> bool {
        self.in_charge.load(SeqCst)
    }

    /// Whether an accepted socket has yet to be set up.
    pub(crate) fn is_foreign(&self) -> bool {
        self.queue.load(Relaxed) != Queue::Own as u8
    }

    /// Its queue was found empty.
    pub(crate) fn is_empty(&self) {
        let (renewed, own) = (Queue::Renewed as u8, Queue::Own as u8);
        let _ = self.queue.compare_exchange(renewed, own, Relaxed, Relaxed);
    }

    /// Another relay is in charge of it from now on.
    pub(crate) fn hand_over(&self) {
        self.in_charge.store(false, SeqCst);
    }

    /// Whether clients can still reach it: false once whoever is in charge has ended it.
    fn listens(&self) -> bool {
        sockopt::socket_acceptconn(&self.socket).unwrap_or(false)
    }

    /// From now on the kernel drops what asks for a new connection, as if it had been lost on the
    /// way: the client asks again, by when somebody else listens, or nobody. Handshakes that have
    /// begun are completed.
    fn refuse_new(&self) -> std::io::Result<()> {
        use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
        /// Of the TCP header, which a socket's filter sees first: the flags, and two of them.
        const FLAGS: u32 = 13;
        const SYN: u32 = 0x02;
        const ACK: u32 = 0x10;
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        bpf::attach_filter(
            self.socket.as_fd(),
            &mut [
                step(BPF_LD | BPF_B | BPF_ABS, 0, 0, FLAGS),
                step(BPF_ALU | BPF_AND | BPF_K, 0, 0, SYN | ACK),
                step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYN),
                step(BPF_RET | BPF_K, 0, 0, 0),
                step(BPF_RET | BPF_K, 0, 0, u32::MAX),
            ],
        )
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.is_in_charge() {
            // Fails for a socket that does not listen any more.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Read);
        }
    }
}

/// Sockets for another relay.
#[derive(Debug)]
pub(crate) struct Duplicates {
    pub(crate) sockets: Vec<(OwnedFd, Owner)>,
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
    addr: SocketAddr,
    owner: Owner,
    is_inherited: bool,
    /// Bound, and not yet listening.
    claim: Option<OwnedFd>,
    /// Taken over, and not yet dealt out.
    undealt: Vec<Arc<Listener>>,
    sockets: Vec<Arc<Listener>>,
}

impl Listeners {
    /// Takes the inherited sockets, and binds one to each of `addrs` that none of them has, as no
    /// other listener may be; with port 0 the kernel chooses one. Nobody new can connect yet.
    ///
    /// # Errors
    /// An address in use or not of this host.
    pub(crate) fn claim(
        addrs: &[SocketAddr],
        inherited: Vec<Inherited>,
        backlog: i32,
    ) -> Result<Listeners, Error> {
        let mut groups: Vec<Group> = Vec::new();
        for Inherited { socket, addr, owner } in inherited {
            let known = groups.iter().position(|group| group.addr == addr);
            let number = known.unwrap_or_else(|| {
                groups.push(Group { is_inherited: true, ..Group::of(addr, owner) });
                groups.len() - 1
            });
            groups[number].undealt.push(Listener::new(socket, number, false, Queue::Foreign));
        }
        for &addr in addrs {
            if groups.iter().all(|group| group.addr != addr) {
                let claim = socket::bind(addr, false)?;
                let addr = socket::local_addr(&claim)
                    .map_err(|e| Error::io(format!("cannot listen on {addr}"), e))?;
                groups.push(Group { claim: Some(claim), ..Group::of(addr, Owner::Relay) });
            }
        }
        Ok(Listeners { groups, backlog, is_in_charge: false, retired: Vec::new() })
    }

    /// The addresses, with the ports that the kernel chose.
    pub(crate) fn addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.groups.iter().map(|group| group.addr)
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
                bound => {
                    let socket = bound.listen(group.addr, self.backlog, set_up)?;
                    Ok(Listener::new(socket, number, true, Queue::Own))
                }
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
    pub(crate) fn duplicates(&self, addrs: &[SocketAddr]) -> Result<Duplicates, Error> {
        let (mut sockets, mut of) = (Vec::new(), Vec::new());
        let wanted = self.groups.iter().filter(|group| addrs.contains(&group.addr));
        for (group, socket) in wanted.flat_map(|g| g.sockets.iter().map(move |s| (g, s))) {
            let duplicate = rustix::io::fcntl_dupfd_cloexec(&socket.socket, 0)
                .map_err(|e| Error::io("cannot duplicate a listening socket", e))?;
            sockets.push((duplicate, group.owner));
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
        let (taken_over, new): (Vec<_>, Vec<_>) = sockets.partition(|(_, s)| s.is_foreign());
        if let Some((Group { addr, .. }, _)) = taken_over.iter().find(|(_, s)| !s.listens()) {
            let message = format!("the socket on {addr} that was taken over has been closed");
            return Err(Error::new(ErrorKind::AddressNotAvailable, message));
        }
        for (Group { addr, .. }, socket) in new {
            rustix::net::listen(&socket.socket, self.backlog)
                .map_err(|e| Error::io(format!("cannot listen on {addr}"), e))?;
            socket.in_charge.store(true, SeqCst);
        }
        for (group, socket) in taken_over {
            // What cannot be set stays as it was. The filter is one that drops SYNs, if any.
            let _ = tcp::detach_filter(&socket.socket);
            let _ = prepare(&socket.socket, group.addr, set_up);
            let _ = rustix::net::listen(&socket.socket, self.backlog);
            socket.in_charge.store(group.owner == Owner::Relay, SeqCst);
            socket.queue.store(Queue::Renewed as u8, Relaxed);
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
    fn of(addr: SocketAddr, owner: Owner) -> Group {
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
        while bound.len() + self.undealt.len() < workers {
            let socket = match socket::bind(self.addr, true) {
                // Another user's, which a socket of ours may not join.
                Err(e) if self.is_inherited && e.kind() == ErrorKind::AddressInUse => break,
                socket => socket?,
            };
            prepare(&socket, self.addr, set_up)?;
            bound.push(Bound::Another(socket));
        }
        Ok(bound)
    }
}

fn prepare(socket: &OwnedFd, addr: SocketAddr, set_up: SetUp) -> Result<(), Error> {
    set_up(socket, addr).map_err(|e| Error::io(format!("cannot set up a socket for {addr}"), e))
}

/// A socket that is about to listen.
enum Bound {
    /// The first on its address.
    Claim(OwnedFd),
    Another(OwnedFd),
}

impl Bound {
    fn listen(self, addr: SocketAddr, backlog: i32, set_up: SetUp) -> Result<OwnedFd, Error> {
        let fail = |e: Errno| Error::io(format!("cannot listen on {addr}"), e);
        let mut claim = match self {
            Bound::Claim(claim) => claim,
            Bound::Another(socket) => {
                rustix::net::listen(&socket, backlog).map_err(fail)?;
                return Ok(socket);
            }
        };
        for left in (0..CLAIMS).rev() {
            prepare(&claim, addr, set_up)?;
            match rustix::net::listen(&claim, backlog) {
                // If two try at once, the kernel may refuse both. One of them is to win.
                Err(Errno::ADDRINUSE) if left > 0 => {
                    drop(claim);
                    let moment = RandomState::new().hash_one(left) % 8_000;
                    std::thread::sleep(Duration::from_micros(moment));
                    claim = socket::bind(addr, false)?;
                }
                result => {
                    result.map_err(fail)?;
                    break;
                }
            }
        }
        sockopt::set_socket_reuseport(&claim, true).map_err(fail)?;
        Ok(claim)
    }
}

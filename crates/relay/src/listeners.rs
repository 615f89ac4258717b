//! The listening sockets of a relay: claimed for it alone, dealt out to its workers, let go.
//!
//! **A claim.** Sockets of one address that all have `SO_REUSEPORT` listen together, also those of
//! two relays, which would split the clients between them. So the first socket of a relay is bound
//! and listens without it: the kernel lets no second one do that, and lets it do so beside no other
//! listener. Only then does it get `SO_REUSEPORT`, so that the other workers' sockets can join.
//!
//! **A queue each.** The kernel deals clients out to the sockets of a group as they come, and a
//! client stays in the queue of its socket: to close one resets whom it holds. So a socket is closed
//! only when it is empty and nobody can come any more ([`Listener::refuse_new`]), and all of them
//! live as long as the relay lets clients in, also when a worker ends early.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;

use crate::{Error, socket, sockopt as tcp};

/// How often a claim is tried when another process tries the same at the same moment.
const CLAIMS: u32 = 100;

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    /// Clients that have completed their handshake and wait to be accepted.
    pub(crate) fn waiting(&self) -> usize {
        tcp::accept_queue(&self.0).unwrap_or(0)
    }

    /// From now on the kernel drops what asks for a new connection, as if it had been lost on the
    /// way: the client asks again, by when somebody else listens, or nobody. Handshakes that have
    /// begun are completed.
    pub(crate) fn refuse_new(&self) -> std::io::Result<()> {
        use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET};
        /// Of the TCP header, which a socket's filter sees first: the flags, and two of them.
        const FLAGS: u32 = 13;
        const SYN: u32 = 0x02;
        const ACK: u32 = 0x10;
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        bpf::attach_filter(
            self.0.as_fd(),
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
        self.0.as_fd()
    }
}

/// One worker's.
pub(crate) type Own = Vec<Arc<Listener>>;

/// All of a relay's.
#[derive(Debug)]
pub(crate) struct Listeners {
    groups: Vec<Group>,
    backlog: i32,
    /// Those that are the workers' alone.
    retired: Vec<Weak<Listener>>,
}

/// Those on one address.
#[derive(Debug)]
struct Group {
    addr: SocketAddr,
    /// Bound, and not yet listening.
    claim: Option<OwnedFd>,
    sockets: Vec<Arc<Listener>>,
}

impl Listeners {
    /// Binds a socket to each of these addresses, as no other listener may be; with port 0 the kernel
    /// chooses one. Nobody can connect yet.
    ///
    /// # Errors
    /// An address in use or not of this host.
    pub(crate) fn claim(addrs: &[SocketAddr], backlog: i32) -> Result<Listeners, Error> {
        let group = |&addr| {
            let claim = socket::bind(addr, false)?;
            let addr = socket::local_addr(&claim)
                .map_err(|e| Error::io(format!("cannot listen on {addr}"), e))?;
            Ok(Group { addr, claim: Some(claim), sockets: Vec::new() })
        };
        let groups = addrs.iter().map(group).collect::<Result<_, Error>>()?;
        Ok(Listeners { groups, backlog, retired: Vec::new() })
    }

    /// The addresses, with the ports that the kernel chose.
    pub(crate) fn addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.groups.iter().map(|group| group.addr)
    }

    /// Listeners for each of `workers` more workers, on which clients wait from now on.
    ///
    /// # Errors
    /// An address that another process listens on by now; a lack of open files. Nothing has changed
    /// then.
    pub(crate) fn deal(&mut self, workers: usize, set_up: SetUp) -> Result<Vec<Own>, Error> {
        // Whoever listens has clients to lose: what may fail comes first.
        let mut bound = Vec::new();
        for group in &mut self.groups {
            for _ in 0..workers {
                bound.push(Bound::new(group, set_up)?);
            }
        }
        let mut hands = vec![Own::new(); workers];
        let mut bound = bound.into_iter();
        for group in &self.groups {
            for hand in &mut hands {
                let socket = bound.next().expect("one for each was bound");
                hand.push(Arc::new(socket.listen(group.addr, self.backlog, set_up)?));
            }
        }
        for hand in &hands {
            for (group, listener) in self.groups.iter_mut().zip(hand) {
                group.sockets.push(Arc::clone(listener));
            }
        }
        Ok(hands)
    }

    /// Clients that wait to be accepted.
    pub(crate) fn waiting(&self) -> usize {
        let retired = self.retired.iter().filter_map(Weak::upgrade).map(|one| one.waiting());
        self.all().map(|one| one.waiting()).chain(retired).sum()
    }

    /// Lets nobody new come, and leaves the sockets to the workers, who close them when those who
    /// are there have been accepted.
    pub(crate) fn retire(&mut self) {
        for listener in self.all() {
            if let Err(e) = listener.refuse_new() {
                tracing::warn!("new clients keep coming while those who wait are let in: {e}");
            }
        }
        for group in &mut self.groups {
            group.claim = None;
            self.retired.extend(group.sockets.drain(..).map(|socket| Arc::downgrade(&socket)));
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Listener>> {
        self.groups.iter().flat_map(|group| &group.sockets)
    }
}

/// Gives a socket the options that accepted ones inherit from it.
type SetUp<'a> = &'a dyn Fn(&OwnedFd, SocketAddr) -> rustix::io::Result<()>;

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
    fn new(group: &mut Group, set_up: SetUp) -> Result<Bound, Error> {
        if let Some(claim) = group.claim.take() {
            return Ok(Bound::Claim(claim));
        }
        let socket = socket::bind(group.addr, true)?;
        prepare(&socket, group.addr, set_up)?;
        Ok(Bound::Another(socket))
    }

    fn listen(self, addr: SocketAddr, backlog: i32, set_up: SetUp) -> Result<Listener, Error> {
        let fail = |e: Errno| Error::io(format!("cannot listen on {addr}"), e);
        let mut claim = match self {
            Bound::Claim(claim) => claim,
            Bound::Another(socket) => {
                rustix::net::listen(&socket, backlog).map_err(fail)?;
                return Ok(Listener(socket));
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
        Ok(Listener(claim))
    }
}

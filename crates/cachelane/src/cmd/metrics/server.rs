//! The HTTP server: one thread that no client can make wait, and one that gathers.
//!
//! # Protocol
//!
//! The server's thread asks for a round of gathering as soon as somebody waits for metrics and no round
//! runs, and says in which forms. Whoever asks while a round runs waits for the next one: what a client
//! gets was read after it asked, those that ask during a round share the next one, and none waits for longer
//! than two. The gathering thread sends what it found and writes a byte, which wakes the server.
//! Each ends when the other has gone.
//!
//! # Bounds
//!
//! Connections are limited, as are the bytes of a request and the time that each state of a connection may
//! take ([`Connection`]). When there are too many, the one that has least to lose and has been so longest
//! gives way to a newcomer, so clients that send nothing lock nobody out. All who wait for one round share
//! one text; of so many texts that are not read yet, the oldest is given up with its readers.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use crossbeam_utils::CachePadded;
use kit::pulse::Pulse;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::{Resource, getrlimit};

use super::connection::Connection;
use super::families::{Form, Text};
use super::gather::Gatherer;

kit::counters! {
    /// What the server did.
    pub(super) struct Served of ServedCounts {
        connections: "connections", "Connections that were accepted.";
        given_up: "connections",
            "Connections that were closed because they were too slow, or for those that came after them.";
        requests: "requests", "Requests, also those that were refused.";
        refused: "requests", "Requests that were refused: malformed, too long, or for what there is not.";
        rounds: "times", "Times that all processes were asked.";
    }
}

/// The most connections, where so many files may be open.
const CONNECTIONS: usize = 512;

/// For how long a connection does not have to give way to a newcomer.
const GRACE: Duration = Duration::from_millis(250);

/// How long newcomers wait after one could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The most texts that some client has not read yet.
const TEXTS: usize = 16;

/// The most clients that are accepted in a turn.
const ACCEPTS: usize = 64;

/// The text of a round in each form that was asked for; none if the round has failed.
type Texts = Option<Vec<Text>>;

/// The server while it runs.
pub(super) struct Server {
    counts: Arc<CachePadded<ServedCounts>>,
    thread: Option<JoinHandle<io::Result<()>>>,
    is_over: Arc<AtomicBool>,
    /// Its end tells the thread to stop.
    stop: Option<UnixStream>,
}

impl Server {
    /// Serves on these sockets, which do not block. Calls `over` when that fails.
    pub(super) fn start(
        listeners: Vec<OwnedFd>,
        over: impl Fn() + Send + 'static,
    ) -> anyhow::Result<Server> {
        let counts = Arc::new(CachePadded::default());
        let (wake, waker) = UnixStream::pair().context("cannot make a pair of sockets")?;
        let stop = waker.try_clone().context("cannot duplicate a file")?;
        for end in [&wake, &waker] {
            end.set_nonblocking(true).context("cannot set up a socket")?;
        }
        let (ask, asked) = channel();
        let (tell, told) = channel();
        let thread = |name: &str| thread::Builder::new().name(name.into());
        let gather = move || gather(&asked, &tell, &waker);
        thread("gather").spawn(gather).context("cannot start a thread")?;
        let clients = Clients {
            all: Vec::new(),
            most: most_connections(),
            texts: VecDeque::new(),
            counts: Arc::clone(&counts),
            listeners,
            paused: None,
        };
        let rounds = Rounds { ask, told, runs: false };
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Over { is_over: Arc::clone(&is_over), tell: over };
        let serve = move || {
            // Also if it panics.
            let _over = over;
            serve(clients, rounds, wake)
        };
        let thread = Some(thread("http").spawn(serve).context("cannot start a thread")?);
        Ok(Server { counts, thread, is_over, stop: Some(stop) })
    }

    /// What it did so far.
    pub(super) fn counters(&self) -> impl Fn() -> Served + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move || Served::from(&**counts)
    }

    /// Whether it has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        // Relaxed: whoever joins the thread has the rest.
        self.is_over.load(Relaxed)
    }

    /// Why it has ended.
    pub(super) fn failure(mut self) -> anyhow::Error {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => {
                anyhow::Error::from(error).context("the HTTP server has failed")
            }
            _ => anyhow::anyhow!("the HTTP server has ended; the log says why"),
        }
    }
}

/// Says that the thread that has it ends.
struct Over<F: Fn()> {
    is_over: Arc<AtomicBool>,
    tell: F,
}

impl<F: Fn()> Drop for Over<F> {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        (self.tell)();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended.
            let _ = stop.shutdown(std::net::Shutdown::Both);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Half of the files that may be open, for asking processes takes some as well.
fn most_connections() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / 2).unwrap_or(usize::MAX).clamp(8, CONNECTIONS)
}

fn gather(asked: &Receiver<Vec<Form>>, tell: &Sender<Texts>, mut waker: &UnixStream) {
    let mut gatherer = Gatherer::new(true);
    let pulse = Pulse::of_this_thread();
    while let Ok(forms) = pulse.wait(|| asked.recv()) {
        let gathered = gatherer.gather().map_err(anyhow::Error::from);
        let texts = gathered.and_then(|families| families.encode(&forms));
        let texts = texts.inspect_err(|error| tracing::error!("no metrics: {error:#}")).ok();
        if tell.send(texts).is_err() {
            return;
        }
        // A pipe that is full wakes it as well.
        let _ = waker.write(&[0]);
    }
}

/// The gathering thread, as the server sees it.
struct Rounds {
    ask: Sender<Vec<Form>>,
    told: Receiver<Texts>,
    /// Whether a round runs.
    runs: bool,
}

struct Clients {
    all: Vec<Connection>,
    most: usize,
    /// What clients may still be reading, the oldest first.
    texts: VecDeque<Weak<[u8]>>,
    counts: Arc<CachePadded<ServedCounts>>,
    listeners: Vec<OwnedFd>,
    /// Until when nobody is accepted.
    paused: Option<Instant>,
}

fn serve(mut clients: Clients, mut rounds: Rounds, mut wake: UnixStream) -> io::Result<()> {
    let pulse = Pulse::of_this_thread();
    loop {
        if !rounds.runs {
            clients.begin(&mut rounds)?;
        }
        let ready = pulse.wait(|| clients.wait(&wake))?;
        let now = Instant::now();
        if ready.first().is_some_and(|ready| !ready.is_empty()) {
            match wake.read(&mut [0; 64]) {
                Ok(0) => return Ok(()),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        clients.turn(&ready[1..], now);
        match rounds.told.try_recv() {
            Ok(texts) => {
                rounds.runs = false;
                clients.give(texts, now);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(gone()),
        }
        clients.accept(now);
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that gathers has ended")
}

impl Clients {
    /// Asks for a round if somebody waits for one.
    fn begin(&mut self, rounds: &mut Rounds) -> io::Result<()> {
        let forms: BTreeSet<Form> = self.all.iter_mut().filter_map(Connection::begin).collect();
        if !forms.is_empty() {
            self.counts.rounds.add(1);
            rounds.ask.send(forms.into_iter().collect()).map_err(|_| gone())?;
            rounds.runs = true;
        }
        Ok(())
    }

    /// Waits until something happens; what has, to the waker and each connection.
    fn wait(&self, wake: &UnixStream) -> io::Result<Vec<PollFlags>> {
        let now = Instant::now();
        let accepts = self.paused.is_none_or(|until| until <= now)
            && (self.all.len() < self.most || self.least(now).is_some());
        let mut polled = vec![PollFd::new(wake, PollFlags::IN)];
        polled.extend(self.all.iter().map(|one| PollFd::new(one, one.events())));
        if accepts {
            polled.extend(self.listeners.iter().map(|one| PollFd::new(one, PollFlags::IN)));
        }
        let deadlines = self.all.iter().filter_map(Connection::deadline).min();
        let look = (!accepts).then(|| now + PAUSE);
        let until = deadlines.into_iter().chain(look).min();
        // Rounded up: a wait that ends too early would turn in circles.
        let left =
            until.map(|until| until.saturating_duration_since(now) + Duration::from_millis(1));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(polled.iter().take(1 + self.all.len()).map(PollFd::revents).collect())
    }

    /// Goes on with those to which something happened, and gives up those that are too slow.
    fn turn(&mut self, ready: &[PollFlags], now: Instant) {
        let counts = &self.counts;
        let mut ready = ready.iter();
        self.all.retain_mut(|one| {
            let ready = ready.next().copied().unwrap_or(PollFlags::empty());
            let is_gone = ready.intersects(PollFlags::HUP | PollFlags::ERR) && one.rank().is_none();
            if is_gone || (!ready.is_empty() && !one.turn(counts, now)) {
                return false;
            }
            let is_late = one.deadline().is_some_and(|deadline| deadline <= now);
            counts.given_up.add((is_late && !one.is_served()).into());
            !is_late
        });
    }

    /// Gives the texts of a round to those that wait for it.
    fn give(&mut self, texts: Texts, now: Instant) {
        let counts = &self.counts;
        self.all.retain_mut(|one| {
            one.give(texts.as_deref(), now);
            one.turn(counts, now)
        });
        self.texts.extend(texts.iter().flatten().map(|(_, text)| Arc::downgrade(text)));
        drop(texts);
        self.texts.retain(|text| text.strong_count() > 0);
        while self.texts.len() > TEXTS {
            let oldest = self.texts.pop_front().and_then(|text| text.upgrade());
            let Some(oldest) = oldest else { continue };
            let before = self.all.len();
            self.all.retain(|one| !one.is_writing(&oldest));
            self.counts.given_up.add((before - self.all.len()) as u64);
        }
    }

    /// Takes in whoever has connected, as far as there is place.
    fn accept(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| until > now) {
            return;
        }
        self.paused = None;
        for place in 0..self.listeners.len() {
            for _ in 0..ACCEPTS {
                let least = match self.all.len() < self.most {
                    true => None,
                    false => match self.least(now) {
                        Some(least) => Some(least),
                        None => return,
                    },
                };
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match accept_with(&self.listeners[place], flags) {
                    Ok(socket) => {
                        if let Some(least) = least {
                            self.give_way(least);
                        }
                        self.counts.connections.add(1);
                        self.all.push(Connection::new(socket, now));
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(error) => {
                        tracing::warn!("cannot accept a connection: {error}");
                        self.paused = Some(now + PAUSE);
                        if let Some(least) = self.least(now) {
                            self.give_way(least);
                        }
                        return;
                    }
                }
            }
        }
    }

    fn give_way(&mut self, least: usize) {
        let one = self.all.swap_remove(least);
        self.counts.given_up.add((!one.is_served()).into());
    }

    /// The one that has to give way to a newcomer, if there is one.
    fn least(&self, now: Instant) -> Option<usize> {
        let ranks = self.all.iter().enumerate().filter_map(|(at, one)| Some((one.rank()?, at)));
        let old = ranks.filter(|((_, since), _)| now.saturating_duration_since(*since) >= GRACE);
        old.min().map(|(_, at)| at)
    }
}

//! Traffic whose truth is known: clients that ask and wait, and a server that does a counted amount
//! of work for each request. Its knobs change the amount.
//!
//! The server is this process, which serves its knobs as the mechanisms do. It is only paced by its
//! clients, so what it answers in a second follows from the work.

use std::convert::Infallible;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use knobs::{Field, Knob, MeterKind, Reach, Registry, Server};

use super::Ground;
use crate::bench::command::runtime_dir;

/// A knob that does nothing.
pub(super) const NOTHING: &str = "echo.nothing";
/// A knob that adds [`MORE`] to the work of each request.
pub(super) const WORK: &str = "echo.work";
/// A knob that adds [`MORE_OF_NEW`] to the work of each request on connections that are opened while
/// it is on.
pub(super) const WORK_OF_NEW: &str = "echo.work_of_new";

/// What [`WORK`] adds, as a share.
pub(super) const MORE: f64 = 0.03;
/// What [`WORK_OF_NEW`] adds, as a share.
pub(super) const MORE_OF_NEW: f64 = 0.1;

/// Steps of a unit of work.
const STEPS: u64 = 100;
/// Bytes of a request and of its answer.
const MESSAGE: usize = 64;
/// What a reading gives.
const FIELDS: [Field; 2] = [
    ("answered", "requests", "Requests that were answered."),
    ("units", "units", "Units of work that were done."),
];

/// How much traffic there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Connections, each with a request under way.
    pub(super) connections: usize,
    /// Units of work for a request; enough that a share of them is a whole number.
    pub(super) units: u64,
    /// How long a connection lasts before the client opens another; none: as long as the traffic.
    pub(super) life: Option<Duration>,
}

/// The server and its clients, until it is dropped.
#[derive(Debug)]
pub(super) struct Echo {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<io::Result<()>>>,
    acceptor: Option<JoinHandle<()>>,
    address: SocketAddr,
    _knobs: Server,
    link: lab::Link,
}

/// Relaxed throughout: each is a value or a count of its own.
#[derive(Debug, Default)]
struct Shared {
    units: u64,
    nothing: AtomicBool,
    work: AtomicBool,
    work_of_new: AtomicBool,
    answered: AtomicU64,
    done: AtomicU64,
    over: AtomicBool,
}

impl Echo {
    /// Starts the traffic and serves the knobs.
    pub(super) fn start(ground: &Ground, load: Load) -> anyhow::Result<Echo> {
        let link = ground.link.clone();
        let shared = Arc::new(Shared { units: load.units, ..Shared::default() });
        let knobs = Server::bind_in(shared.registry()?, &runtime_dir(&ground.lab))?;
        let at = link.b.socket(0);
        let listener = link.b.host.run(|| TcpListener::bind(at))?.context("the server")?;
        let address = listener.local_addr()?;
        let serving = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || accept(&listener, &serving));
        let (clients, acceptor) = (Vec::new(), Some(acceptor));
        // From here on, dropping it ends what was started.
        let mut echo = Echo { shared, clients, acceptor, address, _knobs: knobs, link };
        for number in 0..load.connections {
            let shared = Arc::clone(&echo.shared);
            // Spread, so that connections do not end all at a time.
            let first = load.life.map(|life| life * (number as u32 + 1) / load.connections as u32);
            let ask = move || ask(address, &shared, first, load.life);
            echo.clients.push(echo.link.a.host.spawn_thread("asks", ask)?);
        }
        Ok(echo)
    }

    /// Runs `work`, and makes sure that requests were answered meanwhile.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let before = self.shared.answered.load(Relaxed);
        let done = work()?;
        let answered = self.shared.answered.load(Relaxed) - before;
        let ended = self.clients.iter().filter(|client| client.is_finished()).count();
        ensure!(ended == 0, "{ended} of {} clients have ended", self.clients.len());
        ensure!(answered > 0, "no request was answered");
        Ok(done)
    }

    /// A measure of a trial: what a request costs in CPU time, of this process.
    pub(super) fn cpu_of_request() -> String {
        let pid = std::process::id();
        format!("process.cpu@{pid}/counter:echo.answered@{pid}")
    }

    /// A measure of a trial: requests a second.
    pub(super) fn rate() -> String {
        format!("counter:echo.answered@{},higher", std::process::id())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        for client in self.clients.drain(..) {
            // How it ended is said by `during`.
            let _ = client.join();
        }
        let address = self.address;
        // Wakes the thread that accepts; it ends with its connections, which clients have closed.
        let _ = self.link.a.host.run(move || TcpStream::connect(address).is_ok());
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

impl Shared {
    fn registry(self: &Arc<Shared>) -> Result<Registry, knobs::Error> {
        let registry = Registry::new("echo");
        let at_once = |name, help: &str, of: fn(&Shared) -> &AtomicBool| self.knob(name, help, of);
        registry.register(at_once(NOTHING, "nothing at all", |shared| &shared.nothing))?;
        let help = "3 % more work for each request";
        registry.register(at_once(WORK, help, |shared| &shared.work))?;
        let help = "10 % more work for each request on new connections";
        let of_new = at_once(WORK_OF_NEW, help, |shared| &shared.work_of_new);
        registry.register(of_new.reaching(Reach::NewConnections))?;
        let shared = Arc::clone(self);
        let read =
            move || Ok::<_, Infallible>([shared.answered.load(Relaxed), shared.done.load(Relaxed)]);
        registry.meters(MeterKind::Counter, "echo", FIELDS, read)?;
        Ok(registry)
    }

    fn knob(self: &Arc<Shared>, name: &str, help: &str, of: fn(&Shared) -> &AtomicBool) -> Knob {
        let (reader, writer) = (Arc::clone(self), Arc::clone(self));
        let get = move || Ok::<_, Infallible>(of(&reader).load(Relaxed));
        let set = move |on| {
            of(&writer).store(on, Relaxed);
            Ok::<_, Infallible>(())
        };
        Knob::off_on(name, help, false, get, set)
    }

    /// The work of a request on a connection that was opened as `is_more` says.
    fn serve(&self, is_more: bool) {
        let share = |on: bool, share: f64| if on { share } else { 0.0 };
        let more = share(self.work.load(Relaxed), MORE) + share(is_more, MORE_OF_NEW);
        let units = self.units + (self.units as f64 * more).round() as u64;
        spin(units);
        self.done.fetch_add(units, Relaxed);
        self.answered.fetch_add(1, Relaxed);
    }
}

/// Work that needs the CPU and no memory, each step the result of the last one.
fn spin(units: u64) {
    let mut value = 1_u64;
    for _ in 0..units * STEPS {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
    }
}

/// Accepts until it is over; a thread for each connection.
fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut serving: Vec<JoinHandle<()>> = Vec::new();
    for stream in listener.incoming() {
        if shared.over.load(Relaxed) {
            break;
        }
        // A client that was not accepted sees it.
        let Ok(stream) = stream else { continue };
        serving.retain(|thread| !thread.is_finished());
        let shared = Arc::clone(shared);
        // The client's end of the connection ends it.
        serving.push(std::thread::spawn(move || drop(answer(stream, &shared))));
    }
    for thread in serving {
        // One that panicked has said so.
        let _ = thread.join();
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let is_more = shared.work_of_new.load(Relaxed);
    let mut message = [0; MESSAGE];
    loop {
        stream.read_exact(&mut message)?;
        shared.serve(is_more);
        stream.write_all(&message)?;
    }
}

/// Asks until it is over: on a connection for `first`, then on others for `life` each.
fn ask(
    to: SocketAddr,
    shared: &Shared,
    first: Option<Duration>,
    life: Option<Duration>,
) -> io::Result<()> {
    let mut message = [0x5a; MESSAGE];
    let mut life_of_this = first;
    while !shared.over.load(Relaxed) {
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        let opened = Instant::now();
        while !shared.over.load(Relaxed) && life_of_this.is_none_or(|life| opened.elapsed() < life)
        {
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
        }
        life_of_this = life;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_knob_adds_its_share_of_the_work_and_nothing_adds_none() {
        let shared = Arc::new(Shared { units: 1000, ..Shared::default() });
        let registry = shared.registry().unwrap();
        let work_of = |is_more| {
            let before = shared.done.load(Relaxed);
            shared.serve(is_more);
            shared.done.load(Relaxed) - before
        };
        assert_eq!([work_of(false), work_of(true)], [1000, 1100]);
        for (knob, expected) in [(NOTHING, 1000), (WORK_OF_NEW, 1000), (WORK, 1030)] {
            registry.set(knob, "on").unwrap();
            assert_eq!(work_of(false), expected, "{knob}");
        }
        let readings = registry.readings();
        assert_eq!(readings[0].name, "echo.answered");
        assert_eq!(readings[0].value.value(), Some(&5));
    }
}

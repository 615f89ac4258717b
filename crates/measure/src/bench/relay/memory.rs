//! Memory behind a slow receiver: a sender offers all it can, the receiver reads as fast as it
//! can for a moment and then 1 MB/s, and the machine's used memory is watched. The stock sockmap,
//! without a governor, stands beside our engines, with a cap so that it cannot hurt the host.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::ensure;
use knobs::Client;
use lab::peer::{Redirect, StockSockmap};
use lab::usage::system_memory;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use super::flood::Flood;
use super::targets::Targets;
use crate::bench::Stop;
use crate::bench::experiment::{Absent, Measure, Part, Step, Time};
use crate::bench::relay_process::RelayProcess;

const ENGINES: [&str; 4] = ["auto", "copy", "splice", "sockmap"];
/// What the receiver reads, bytes a second.
const RATE: u64 = 1_000_000;
/// What may be under way, for the host's sake.
const CAP: u64 = 512 << 20;
/// Socket buffer of the sender and of the receiver, bytes; the kernel doubles it.
const END_BUFFER: usize = 128 << 10;
/// Relays of this part listen here and up.
const PORT: u16 = 900;

pub(super) fn part(time: Duration) -> Part<Targets> {
    let steps = ENGINES.len() + 1;
    let cost = Time { once: 0.0, steps, windows: 0.0, more: time.as_secs_f64() + 0.3 };
    Part::new("memory", "Memory behind a slow receiver", cost)
        .rounds(|_| 1)
        .stage(move |targets, _| {
            let memory = Memory { targets, time };
            let names = ENGINES.map(|engine| format!("relay-{engine}"));
            let cases = names.into_iter().chain(["sockmap stock".into()]).enumerate();
            let step = |(_, name): &(usize, String)| Step {
                name: format!("slow receiver, {name}"),
                gives: ["under way", "memory"]
                    .map(|what| (format!("slow, {what}, {name}"), "B"))
                    .into(),
            };
            let measure = Measure::new(cases, step, move |(number, _), now| {
                let held = targets.host.run(|| match ENGINES.get(*number) {
                    Some(engine) => memory.through_relay(engine, PORT + *number as u16, now.stop),
                    None => memory.through_stock(now.stop),
                })??;
                Ok(held.map(|bytes| bytes as f64).into())
            });
            Ok(measure.note(format!(
                "Slow receiver: {RATE} bytes a second for {time:?}; the relay's budget is {} bytes, \
                 the ends' own socket buffers come on top; the sender stops at {CAP} bytes under way.",
                relay::Config::DEFAULT_BUDGET,
            )))
        })
}

/// Every engine, and the stock sockmap.
struct Memory<'a> {
    targets: &'a Targets,
    time: Duration,
}

/// The most bytes that were accepted from the sender and not yet read by the receiver, and the most
/// that the machine's used memory grew.
type Held = [u64; 2];

impl Memory<'_> {
    fn through_relay(&self, engine: &str, port: u16, stop: &Stop) -> anyhow::Result<Held> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let (targets, to) = (self.targets, listener.local_addr()?);
        let addr = ([127, 0, 0, 1], port).into();
        let more = format!("--engine {engine}");
        let relay = RelayProcess::start(&targets.lab, &targets.host, addr, to, &more)?;
        let sender = TcpStream::connect(relay.addr)?;
        let (receiver, _) = listener.accept()?;
        let held = self.watch(sender, receiver, stop)?;
        let by_kernel = Client::connect(&relay.control)?.counter("relay.bytes_redirected")?;
        let expected = engine == "sockmap";
        let moved = || Absent(format!("{engine}: sockmap moved {by_kernel} bytes"));
        ensure!((by_kernel > 0) == expected, moved());
        Ok(held)
    }

    /// Sockmap used plainly: what the proxy's client leg receives leaves by its backend leg.
    fn through_stock(&self, stop: &Stop) -> anyhow::Result<Held> {
        let (sender, client_leg) = super::jiffy::pair()?;
        let (backend_leg, receiver) = super::jiffy::pair()?;
        let _redirect = StockSockmap::new(&client_leg, &backend_leg, Redirect::Egress)?;
        self.watch(sender, receiver, stop)
    }

    fn watch(&self, sender: TcpStream, receiver: TcpStream, stop: &Stop) -> anyhow::Result<Held> {
        // The ends' own buffers are kept small, so that what is seen is what lies between them.
        set_socket_send_buffer_size(&sender, END_BUFFER)?;
        set_socket_recv_buffer_size(&receiver, END_BUFFER)?;
        let before = system_memory()?;
        let flood = Flood::start(sender, receiver, 64 << 10, CAP, Some(RATE))?;
        let [mut under_way, mut memory] = [0; 2];
        let start = Instant::now();
        while start.elapsed() < self.time {
            stop.check()?;
            std::thread::sleep(Duration::from_millis(100));
            memory = memory.max(system_memory()?.saturating_sub(before));
            under_way = under_way.max(flood.sent().saturating_sub(flood.received()));
        }
        ensure!(flood.received() > 0, Absent("nothing arrived".into()));
        Ok([under_way, memory])
    }
}

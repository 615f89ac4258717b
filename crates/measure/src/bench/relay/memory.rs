//! Memory behind a slow receiver: a sender offers all it can, the receiver reads as fast as it
//! can for a moment and then 1 MB/s, and the machine's used memory is watched. The stock sockmap, without a governor, stands beside our
//! engines, with a cap so that it cannot hurt the host.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use knobs::Client;
use lab::peer::{Redirect, StockSockmap};
use lab::usage::system_memory;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use super::Bench;
use super::flood::Flood;
use crate::bench::relay_process::RelayProcess;

/// Cases of this part.
pub(super) const CASES: usize = 1 + ENGINES.len();

const ENGINES: [&str; 4] = ["auto", "copy", "splice", "sockmap"];
/// What the receiver reads, bytes a second.
const RATE: u64 = 1_000_000;
/// What may be under way, for the host's sake.
const CAP: u64 = 512 << 20;
/// Socket buffer of the sender and of the receiver, bytes; the kernel doubles it.
const END_BUFFER: usize = 128 << 10;
/// Relays of this part listen here and up.
const PORT: u16 = 900;

/// What a case came to.
struct Held {
    /// The most bytes that were accepted from the sender and not yet read by the receiver.
    under_way: u64,
    /// The most that the machine's used memory grew.
    memory: u64,
}

/// Runs every engine, then the stock sockmap.
pub(super) fn run(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    for (port, engine) in (PORT..).zip(ENGINES) {
        bench.step(&format!("slow receiver, {engine}"))?;
        let held = bench.targets.host.run(|| through_relay(bench, engine, port))??;
        note(bench, &format!("relay-{engine}"), &held);
    }
    bench.step("slow receiver, stock sockmap")?;
    let held = bench.targets.host.run(|| through_stock(bench))??;
    note(bench, "sockmap stock", &held);
    bench.output.notes.push(format!(
        "Slow receiver: {RATE} bytes a second for {:?}; the relay's budget is {} bytes, the ends' \
         own socket buffers come on top; the sender stops at {CAP} bytes under way.",
        bench.plan.memory,
        relay::Config::DEFAULT_BUDGET,
    ));
    Ok(())
}

fn note(bench: &mut Bench<'_>, name: &str, held: &Held) {
    bench.series.add(&format!("slow, under way, {name}"), "B", held.under_way as f64);
    bench.series.add(&format!("slow, memory, {name}"), "B", held.memory as f64);
}

fn through_relay(bench: &Bench<'_>, engine: &str, port: u16) -> anyhow::Result<Held> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let (targets, to) = (&bench.targets, listener.local_addr()?);
    let addr = ([127, 0, 0, 1], port).into();
    let more = ["--engine", engine];
    let relay = RelayProcess::start(&targets.lab, &targets.host, addr, to, &more)?;
    let sender = TcpStream::connect(relay.addr())?;
    let (receiver, _) = listener.accept()?;
    let held = watch(bench, sender, receiver)?;
    let counters = Client::connect(relay.control())?.counters()?;
    let by_kernel = counters.iter().find(|c| c.name == "relay.bytes_redirected");
    let by_kernel = by_kernel.map_or(0, |c| c.value);
    let expected = engine == "sockmap";
    anyhow::ensure!((by_kernel > 0) == expected, "{engine}: sockmap moved {by_kernel} bytes");
    Ok(held)
}

/// Sockmap used plainly: what the proxy's client leg receives leaves by its backend leg.
fn through_stock(bench: &Bench<'_>) -> anyhow::Result<Held> {
    let (sender, client_leg) = super::jiffy::pair()?;
    let (backend_leg, receiver) = super::jiffy::pair()?;
    let _redirect = StockSockmap::new(&client_leg, &backend_leg, Redirect::Egress)?;
    watch(bench, sender, receiver)
}

fn watch(bench: &Bench<'_>, sender: TcpStream, receiver: TcpStream) -> anyhow::Result<Held> {
    // The ends' own buffers are kept small, so that what is seen is what lies between them.
    set_socket_send_buffer_size(&sender, END_BUFFER)?;
    set_socket_recv_buffer_size(&receiver, END_BUFFER)?;
    let before = system_memory()?;
    let flood = Flood::start(sender, receiver, 64 << 10, CAP, Some(RATE))?;
    let mut held = Held { under_way: 0, memory: 0 };
    let start = Instant::now();
    while start.elapsed() < bench.plan.memory {
        bench.stop.check()?;
        std::thread::sleep(Duration::from_millis(100));
        held.memory = held.memory.max(system_memory()?.saturating_sub(before));
        held.under_way = held.under_way.max(flood.sent().saturating_sub(flood.received()));
    }
    anyhow::ensure!(flood.received() > 0, "nothing arrived");
    Ok(held)
}

//! Everything at once, for as long as wanted: threads born and killed, sockets closed with packets
//! on the way, the knob flipped, frames passed from thread to thread; and at the end every frame is
//! accounted for.
//!
//! `CACHELANE_SOAK_SECONDS` says how long (hours are fine), `CACHELANE_SEED` repeats the choices of
//! a run; what threads and the kernel make of them differs.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use cachelane_xsk::{Attach, ErrorKind, Packet, ProgramOptions, Socket, Umem};
use common::{Side, number, numbered, pack, small, two};
use frames::{AlienFree, AreaOptions, Frame, FrameArea, FramePool, LaneCache, PoolOptions};
use lab::testing::root;
use lab::{LinkOptions, Mac};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

fn from_environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}='{value}': expected a number")))
}

#[test]
fn root_every_frame_is_accounted_for_after_a_few_seconds_of_everything() {
    if root("root_every_frame_is_accounted_for_after_a_few_seconds_of_everything") {
        soak(Duration::from_secs(3));
    }
}

#[test]
#[ignore = "ten minutes, or CACHELANE_SOAK_SECONDS"]
fn root_every_frame_is_accounted_for_after_ten_minutes_of_everything() {
    if root("root_every_frame_is_accounted_for_after_ten_minutes_of_everything") {
        soak(Duration::from_secs(from_environment("CACHELANE_SOAK_SECONDS").unwrap_or(600)));
    }
}

/// What the threads have in common.
struct World {
    umem: Umem,
    over: AtomicBool,
    received: AtomicU64,
    lives: AtomicU64,
}

/// One socket's thread: where it is, whom it sends to, and the neighbours that it passes frames to
/// and gets them from.
struct Station<'a> {
    side: &'a Side,
    to: Mac,
    queue: u32,
    home: u16,
    next: SyncSender<Frame>,
    previous: Receiver<Frame>,
}

fn soak(length: Duration) {
    let seed = from_environment("CACHELANE_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.expect("a clock").as_secs()
    });
    eprintln!("{length:?} with CACHELANE_SEED={seed}");
    let two = two(LinkOptions { queues: 2, ..LinkOptions::default() });
    let area = AreaOptions::default().frames(2048).frame_size(2048);
    // Two lanes, two homes each; a cache and an inbox small enough to be full now and then.
    let options = PoolOptions::default().homes(vec![0, 1, 0, 1]).inbox(Some(300));
    let pool = FramePool::new(FrameArea::new(&area).expect("an area"), &options).expect("a pool");
    let world = World {
        umem: Umem::new(pool.clone()).expect("a registration"),
        over: AtomicBool::new(false),
        received: AtomicU64::new(0),
        lives: AtomicU64::new(0),
    };
    let sides = [&two.a, &two.b];
    let (mut nexts, previouses): (Vec<_>, Vec<_>) = (0..4).map(|_| sync_channel(64)).unzip();
    nexts.rotate_left(1);
    let mut random = StdRng::seed_from_u64(seed);
    thread::scope(|scope| {
        for (number, (next, previous)) in (0u16..).zip(nexts.into_iter().zip(previouses)) {
            let (side, other) =
                (sides[usize::from(number) % 2], sides[1 - usize::from(number) % 2]);
            let (queue, to) = (u32::from(number) / 2, other.end.mac);
            let mut station = Station { side, to, queue, home: number, next, previous };
            let (world, seed) = (&world, random.random());
            scope.spawn(move || lives(world, &mut station, StdRng::seed_from_u64(seed)));
        }
        let end = Instant::now() + length;
        while Instant::now() < end {
            pool.set_alien_free(AlienFree::ALL[random.random_range(0..3_usize)]);
            thread::sleep(Duration::from_micros(100 + random.random_range(0..5000)));
        }
        world.over.store(true, Ordering::Relaxed);
    });
    let (received, lives) = (world.received.into_inner(), world.lives.into_inner());
    eprintln!("{received} packets received by {lives} sockets; {:?}", pool.counters());
    assert!(received > 100 && lives > 8, "hardly anything happened");
    drop(world.umem);
    assert_eq!(pool.counters().refused, 0);
    pool.close().expect("every frame is there");
}

/// Threads of a station, one after the other, until it is over.
fn lives(world: &World, station: &mut Station<'_>, mut random: StdRng) {
    // The program goes now and then as well, packets and all.
    while !world.over.load(Ordering::Relaxed) {
        let seed = random.random();
        let born = thread::scope(|scope| {
            scope.spawn(|| live(world, &mut *station, StdRng::seed_from_u64(seed))).join()
        });
        born.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

/// One life of a station: a socket, a cache, some packets. It ends with whatever is under way.
fn live(world: &World, station: &mut Station<'_>, mut random: StdRng) {
    let Station { side, to, queue, .. } = station;
    let mut cache = world.umem.pool().cache(station.home).expect("a cache");
    let mut socket = match side.try_bind(&world.umem, *queue, &small()) {
        Ok(socket) => socket,
        // The kernel lets go of a closed socket's queue when it has the time.
        Err(error) if error.kind() == ErrorKind::QueueTaken => return,
        Err(error) => panic!("{error}"),
    };
    let attach = if random.random_range(0..2) == 0 { Attach::Native } else { Attach::Generic };
    let mut program = match side.try_attach(&ProgramOptions::default().attach(attach)) {
        Ok(program) => Some(program),
        // The other queue's thread has one.
        Err(error) if error.kind() == ErrorKind::ProgramPresent => None,
        Err(error) => panic!("{error}"),
    };
    if let Some(program) = &mut program {
        program.insert(&socket).expect("inserted");
    }
    world.lives.fetch_add(1, Ordering::Relaxed);
    let (mut outgoing, mut incoming) = (Vec::new(), Vec::new());
    let end = Instant::now() + Duration::from_micros(random.random_range(0..40_000));
    while Instant::now() < end {
        socket.fill(&mut cache, random.random_range(0..64_usize));
        socket.wake_rx().expect("a wake-up");
        send_some(&mut socket, &mut cache, &mut outgoing, *to, side, &mut random);
        socket.receive(&mut incoming, 32);
        world.received.fetch_add(incoming.len() as u64, Ordering::Relaxed);
        for packet in incoming.drain(..) {
            // Whoever writes into a frame that is another's is found out here.
            let bytes = packet.bytes(world.umem.pool().area());
            if bytes.len() >= 22 && bytes[12..14] == common::EXPERIMENT.to_be_bytes() {
                number(bytes);
            }
            match station.next.try_send(packet.frame) {
                Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                Err(TrySendError::Full(frame)) => cache.put(frame),
            }
        }
        station.previous.try_iter().for_each(|frame| cache.put(frame));
        cache.maintain();
    }
}

fn send_some(
    socket: &mut Socket,
    cache: &mut LaneCache,
    outgoing: &mut Vec<Packet>,
    to: Mac,
    side: &Side,
    random: &mut StdRng,
) {
    for _ in 0..random.random_range(0..32) {
        // A frame of its own; none left is no reason to stop.
        let Some(frame) = cache.get() else { break };
        cache.put(frame);
        let bytes = numbered(
            side.end.mac.0,
            to.0,
            random.random(),
            64 + random.random_range(0..1000_usize),
        );
        pack(&bytes, 2048, cache, outgoing);
    }
    socket.send(outgoing);
    if random.random_range(0..4) > 0 {
        socket.kick().expect("sent");
    }
    socket.complete(cache, random.random_range(0..64_usize));
}

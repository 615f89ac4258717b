//! What TCP means goes through the relay unchanged, whichever engine moves the bytes.

mod common;

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cachelane_relay::Engine;
use common::pattern::Pattern;
use common::*;

on_every_engine! {
    a_half_close_by_the_client_passes_and_the_backend_still_answers,
    a_half_close_by_the_backend_passes_and_the_client_still_sends,
    the_last_bytes_arrive_when_the_fin_is_right_behind_them,
    a_reset_passes_both_ways,
    a_reset_after_a_half_close_passes_both_ways,
    a_reset_while_bytes_wait_passes_both_ways,
    a_writer_blocks_while_its_reader_does_not_read_and_loses_nothing,
    urgent_bytes_arrive_in_the_stream,
    single_bytes_arrive_at_once,
    an_idle_connection_ends_by_a_reset_and_a_busy_one_goes_on,
    a_connection_that_idles_on_undelivered_bytes_ends_by_a_reset,
    dropping_the_relay_resets_its_connections,
}

/// A connection's ends as (the one that acts, the other); then another's, in the other roles.
fn roles(rig: &Rig, warmth: Warmth) -> impl Iterator<Item = (TcpStream, TcpStream)> {
    (0..2).map(move |place| in_role(place, rig.warm_pair(warmth)))
}

fn in_role(place: usize, Pair { client, backend }: Pair) -> (TcpStream, TcpStream) {
    if place.is_multiple_of(2) { (client, backend) } else { (backend, client) }
}

/// What the kernel is told to hold at most for each end, in tests that fill it.
const ENDS_BUFFER: usize = 64 * 1024;

/// Does the same with a connection in every state and both roles, all at once.
fn in_every_state(rig: &Rig, act: impl Fn(TcpStream, TcpStream) + Sync) {
    let pairs = rig.warm_pairs(&Warmth::ALL.map(|warmth| [warmth; 2]).concat());
    std::thread::scope(|scope| {
        for (place, pair) in pairs.into_iter().enumerate() {
            let (one, other) = in_role(place, pair);
            shrink_buffers(&one, ENDS_BUFFER);
            shrink_buffers(&other, ENDS_BUFFER);
            scope.spawn(|| act(one, other));
        }
    });
}

fn a_half_close_by_the_client_passes_and_the_backend_still_answers(engine: Engine) {
    half_close(engine, |pair| (pair.client, pair.backend));
}

fn a_half_close_by_the_backend_passes_and_the_client_still_sends(engine: Engine) {
    half_close(engine, |pair| (pair.backend, pair.client));
}

fn half_close(engine: Engine, roles: fn(Pair) -> (TcpStream, TcpStream)) {
    let rig = Rig::new(engine);
    for warmth in Warmth::ALL {
        let (first, second) = roles(rig.warm_pair(warmth));
        send_all(&first, b"question");
        first.shutdown(Shutdown::Write).unwrap();
        assert_eq!(receive_to_end(&second), b"question", "{warmth:?}");
        let answer = Pattern::new(3).at(0, 300_000);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send_all(&second, answer);
                drop(second);
            });
            assert!(receive_to_end(&first) == answer, "{warmth:?}");
        });
        rig.await_empty();
    }
    assert_eq!((rig.relay.stats().closed, rig.relay.stats().reset), (3, 0));
}

fn the_last_bytes_arrive_when_the_fin_is_right_behind_them(engine: Engine) {
    let rig = Rig::new(engine);
    for warmth in Warmth::ALL {
        for length in [1, 1000, 70_000, 400_000] {
            for (sender, receiver) in roles(&rig, warmth) {
                let bytes = Pattern::new(length as u64).at(0, length);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        send_all(&sender, bytes);
                        sender.shutdown(Shutdown::Write).unwrap();
                    });
                    assert!(receive_to_end(&receiver) == bytes, "{warmth:?} {length}");
                });
            }
        }
    }
}

fn a_reset_passes_both_ways(engine: Engine) {
    let rig = Rig::new(engine);
    for warmth in Warmth::ALL {
        for (aborting, other) in roles(&rig, warmth) {
            abort(aborting);
            expect_reset(&other);
        }
        rig.await_empty();
    }
    assert_eq!((rig.relay.stats().closed, rig.relay.stats().reset), (0, 6));
}

fn a_reset_after_a_half_close_passes_both_ways(engine: Engine) {
    let rig = Rig::new(engine);
    for warmth in Warmth::ALL {
        for (aborting, other) in roles(&rig, warmth) {
            send_all(&aborting, b"question");
            aborting.shutdown(Shutdown::Write).unwrap();
            assert_eq!(receive_to_end(&other), b"question");
            abort(aborting);
            // The peer has read to the end: what is left to see is the socket's error.
            await_that("the reset arrives", || other.take_error().unwrap().is_some());
            rig.await_empty();
        }
    }
}

fn a_reset_while_bytes_wait_passes_both_ways(engine: Engine) {
    let rig = Rig::with(engine, |config| config.budget = 1 << 20);
    in_every_state(&rig, |writer, reader| {
        fill(&writer, |_| vec![9; 64 * 1024]);
        abort(reader);
        await_that("the writer is reset", || (&writer).write(&[1]).is_err());
    });
    in_every_state(&rig, |writer, reader| {
        fill(&writer, |_| vec![9; 64 * 1024]);
        abort(writer);
        expect_reset(&reader);
    });
    rig.await_empty();
}

fn a_writer_blocks_while_its_reader_does_not_read_and_loses_nothing(engine: Engine) {
    const BUDGET: usize = 1 << 20;
    let rig = Rig::with(engine, |config| config.budget = BUDGET);
    in_every_state(&rig, |writer, reader| {
        let pattern = Pattern::new(5);
        let sent = fill(&writer, |offset| pattern.at(offset, 64 * 1024).to_vec());
        // The ends' own buffers: the kernel doubles what it is told, and lets a packet overshoot.
        let ends = 4 * 2 * ENDS_BUFFER;
        assert!(sent <= (BUDGET + ends) as u64, "{sent} bytes were taken");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                send_all(&writer, pattern.at(sent, 100_000));
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let received = receive_to_end(&reader);
            assert_eq!(received.len() as u64, sent + 100_000);
            for (n, piece) in received.chunks(common::pattern::LONGEST).enumerate() {
                pattern.check((n * common::pattern::LONGEST) as u64, piece);
            }
        });
    });
}

fn urgent_bytes_arrive_in_the_stream(engine: Engine) {
    use rustix::net::{SendFlags, send};
    let rig = Rig::new(engine);
    for warmth in Warmth::ALL {
        for (sender, receiver) in roles(&rig, warmth) {
            for round in 0..20 {
                send_all(&sender, &[b'a'; 1000]);
                assert_eq!(send(&sender, b"!", SendFlags::OOB).unwrap(), 1);
                send_all(&sender, &[b'b'; 1000]);
                let expected = [[b'a'; 1000].as_slice(), b"!", &[b'b'; 1000]].concat();
                assert!(receive(&receiver, 2001) == expected, "{warmth:?} {round}");
            }
            assert_eq!(send(&sender, b"!", SendFlags::OOB).unwrap(), 1);
            sender.shutdown(Shutdown::Write).unwrap();
            assert_eq!(receive_to_end(&receiver), b"!", "{warmth:?}");
        }
    }
}

fn single_bytes_arrive_at_once(engine: Engine) {
    let rig = Rig::new(engine);
    for warmth in Warmth::ALL {
        for (sender, receiver) in roles(&rig, warmth) {
            for byte in 0..200 {
                send_all(&sender, &[byte]);
                assert_eq!(receive(&receiver, 1), [byte], "{warmth:?}");
            }
        }
    }
}

fn an_idle_connection_ends_by_a_reset_and_a_busy_one_goes_on(engine: Engine) {
    const IDLE: Duration = Duration::from_millis(1000);
    let rig = Rig::with(engine, |config| config.idle_timeout = Some(IDLE));
    let busy = rig.warm_pair(Warmth::Down);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            while !ended.load(Relaxed) && start.elapsed() < 2 * PATIENCE {
                converse(&busy);
                std::thread::sleep(IDLE / 50);
            }
        });
        for pair in rig.warm_pairs(&Warmth::ALL) {
            // Neither end has ended its stream, so neither may see an end that looks well.
            expect_reset(&pair.client);
            expect_reset(&pair.backend);
        }
        ended.store(true, Relaxed);
    });
    assert_eq!((rig.relay.stats().idle_timeout, rig.relay.active()), (3, 1));
    part(busy);
}

fn a_connection_that_idles_on_undelivered_bytes_ends_by_a_reset(engine: Engine) {
    let rig = Rig::with(engine, |config| {
        config.idle_timeout = Some(Duration::from_millis(2500));
        config.budget = 1 << 20;
    });
    in_every_state(&rig, |writer, reader| {
        fill(&writer, |_| vec![9; 64 * 1024]);
        await_that("the writer is reset", || (&writer).write(&[1]).is_err());
        expect_reset(&reader);
    });
}

fn dropping_the_relay_resets_its_connections(engine: Engine) {
    let rig = Rig::new(engine);
    let pairs = rig.warm_pairs(&Warmth::ALL);
    drop(rig);
    for pair in pairs {
        expect_reset(&pair.client);
        expect_reset(&pair.backend);
    }
}

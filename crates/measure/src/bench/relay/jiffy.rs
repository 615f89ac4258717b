//! The proposal's experiment: what a client sends is redirected by sockmap into the receive
//! queue of another socket of the same process. The kernel fills that socket's buffer, then
//! sleeps a jiffy; so the buffer's size is the throughput.

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use lab::peer::{Redirect, StockSockmap};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use trial::bench::{Bar, Host};

use super::flood::Flood;
use super::targets::Targets;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};

/// Bytes of a write, as in the proposal.
const WRITE: usize = 64 << 10;
/// What may be under way. The kernel would queue without limit.
const CAP: u64 = 128 << 20;
/// What the sized buffer is sized for, and the most that it may take.
const WANTED: u64 = 4_000_000_000;
const LIMIT: usize = 16 << 20;

pub(super) fn part() -> Part<Targets> {
    let claim = Claim::ratio("sockmap sized / sockmap stock", "sockmap sized", "sockmap stock");
    let time = Time { once: 0.0, steps: 2, windows: 1.25, more: 0.1 };
    let about =
        "The proposal's experiment: sockmap's ingress redirect, stock and with a sized buffer";
    Part::new("jiffy", about, time).claims([claim.bar(Bar::AtLeast(100.0))]).stage(
        |targets: &Targets, _| {
            let sized = sized();
            let cases = [("sockmap stock", None), ("sockmap sized", Some(sized))];
            let step = |(case, _): &(&str, Option<usize>)| Step::of(*case, "B/s");
            let measure = Measure::new(cases, step, |(_, buffer), now| {
                let redirected = targets.host.run(|| Redirected::start(*buffer))??;
                std::thread::sleep(now.window / 4);
                Ok(vec![redirected.rate(now.window)])
            });
            Ok(measure.note(format!(
            "sockmap sized: a receive buffer of {sized} bytes, for {WANTED} bytes a second at a \
                 jiffy of {:?}, within {LIMIT}.",
            jiffy()
        )))
        },
    )
}

/// The receive buffer, in bytes, that the wanted rate takes.
pub(crate) fn sized() -> usize {
    buffer_for(WANTED, jiffy(), LIMIT)
}

/// The kernel's tick: what sockmap waits when a target is full. Of the slowest kernels where it is
/// not known.
pub(crate) fn jiffy() -> Duration {
    Duration::from_secs(1) / Host::detect().hz.unwrap_or(100)
}

/// The socket buffer, in bytes, with which a sockmap redirect can move `bytes_per_second`: the
/// kernel fills it, then sleeps a jiffy. At most `limit`.
fn buffer_for(bytes_per_second: u64, jiffy: Duration, limit: usize) -> usize {
    let bytes = u128::from(bytes_per_second) * jiffy.as_nanos() / 1_000_000_000;
    usize::try_from(bytes).unwrap_or(usize::MAX).min(limit)
}

/// Traffic through the redirect, until it is dropped.
#[derive(Debug)]
pub(crate) struct Redirected {
    // Dropped in this order: the traffic ends before its way.
    flood: Flood,
    _redirect: StockSockmap,
    /// The ends that nobody reads or writes: closed, they would end the traffic.
    _ends: [TcpStream; 2],
}

impl Redirected {
    /// Starts it in the calling thread's network namespace, with a receive buffer of so many
    /// bytes, or with the one that the kernel gives.
    pub(crate) fn start(buffer: Option<usize>) -> anyhow::Result<Redirected> {
        let (sender, source) = pair()?;
        let (receiver, other_end) = pair()?;
        if let Some(bytes) = buffer {
            // The kernel doubles what it is told.
            set_socket_recv_buffer_size_force(&receiver, bytes / 2)?;
        }
        let redirect = StockSockmap::new(&source, &receiver, Redirect::Ingress)?;
        let flood = Flood::start(sender, receiver, WRITE, CAP, None)?;
        Ok(Redirected { flood, _redirect: redirect, _ends: [source, other_end] })
    }

    /// Bytes a second that arrive in a window.
    pub(crate) fn rate(&self, window: Duration) -> f64 {
        let (start, before) = (Instant::now(), self.flood.received());
        std::thread::sleep(window);
        (self.flood.received() - before) as f64 / start.elapsed().as_secs_f64()
    }
}

/// Two ends of a connection over loopback.
pub(super) fn pair() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let connected = TcpStream::connect(listener.local_addr()?)?;
    Ok((connected, listener.accept()?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_rate_times_jiffy_within_its_limit() {
        let ms4 = Duration::from_millis(4);
        assert_eq!(buffer_for(2_000_000_000, ms4, usize::MAX), 8_000_000);
        assert_eq!(buffer_for(2_000_000_000, ms4, 1 << 20), 1 << 20);
        assert_eq!(buffer_for(u64::MAX, Duration::from_secs(9), usize::MAX), usize::MAX);
    }
}

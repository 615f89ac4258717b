//! What is told of a connection when it has ended, to the access log and to the statistics: who,
//! where to, how long, how much, why.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::addr::Addr;
use crate::cause::Cause;

/// Who a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    Ip(SocketAddr),
    /// A process on this host, or 0 if it is in another PID namespace, and its user.
    Unix {
        pid: u32,
        uid: Option<u32>,
    },
}

impl Client {
    /// Its address of IP, if it has one.
    pub(crate) fn ip(self) -> Option<IpAddr> {
        match self {
            Client::Ip(addr) => Some(addr.ip()),
            Client::Unix { .. } => None,
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Ip(addr) => SocketAddr::new(addr.ip().to_canonical(), addr.port()).fmt(f),
            Client::Unix { pid, .. } => write!(f, "unix:{pid}"),
        }
    }
}

/// Where a connection came from, and when it got how far.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// As its socket says, or its PROXY header.
    pub(crate) client: Option<Client>,
    /// The listener's place in the configuration.
    pub(crate) listener: u32,
    /// The address of the backend that it uses, or last tried.
    pub(crate) backend: Option<Addr>,
    /// Backends asked for a connection.
    pub(crate) attempts: u32,
    pub(crate) accepted: Instant,
    /// When a backend was first asked, when one had accepted, when its first byte had come.
    asked: Moment,
    connected: Moment,
    answered: Moment,
}

/// Microseconds after a connection was accepted, if that came to pass; an hour and more is as much as
/// it can hold.
type Moment = Option<u32>;

/// A connection that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) session: Session,
    pub(crate) total: Duration,
    /// Client to backend, and backend to client.
    pub(crate) bytes: [u64; 2],
    pub(crate) cause: Cause,
    /// HAProxy's letter for how far it had come.
    pub(crate) stage: char,
    /// Connections at its end, this one counted: in all and of its listener.
    pub(crate) active: [u64; 2],
    /// Other connections at its end: of all backends and of its own.
    pub(crate) leased: [u64; 2],
}

impl Record {
    /// Time from accepting until a backend was asked, or until the end in the queue.
    pub(crate) fn waited(&self) -> Option<Duration> {
        let in_queue = (self.stage == 'Q').then_some(self.total);
        self.session.waited().or(in_queue)
    }
}

impl Session {
    pub(crate) fn new(client: Option<Client>, listener: usize, now: Instant) -> Session {
        let (asked, connected, answered) = (None, None, None);
        let (listener, accepted) = (listener as u32, now);
        let backend = None;
        Session { client, listener, backend, attempts: 0, accepted, asked, connected, answered }
    }

    /// A backend is to be asked.
    pub(crate) fn seeks(&mut self, now: Instant) {
        self.asked = self.asked.or(self.moment(now));
    }

    /// Whether one was.
    pub(crate) fn has_sought(&self) -> bool {
        self.asked.is_some()
    }

    /// This backend is asked for a connection.
    pub(crate) fn asks(&mut self, backend: Addr) {
        self.attempts += 1;
        self.backend = Some(backend);
    }

    /// A backend has accepted.
    pub(crate) fn is_connected(&mut self, now: Instant) {
        self.connected = self.moment(now);
    }

    /// The backend has sent something.
    pub(crate) fn is_answered(&mut self, now: Instant) {
        self.answered = self.answered.or(self.moment(now));
    }

    fn moment(&self, now: Instant) -> Moment {
        let since = now.saturating_duration_since(self.accepted);
        Some(since.as_micros().try_into().unwrap_or(u32::MAX))
    }

    /// Time from accepting until a backend was first asked: for the PROXY header and in queues.
    fn waited(&self) -> Option<Duration> {
        self.asked.map(micros)
    }

    /// Time from there until a backend had accepted.
    pub(crate) fn connecting(&self) -> Option<Duration> {
        Some(micros(self.connected? - self.asked?))
    }

    /// Time from there until the backend's first byte.
    pub(crate) fn answering(&self) -> Option<Duration> {
        Some(micros(self.answered? - self.connected?))
    }
}

fn micros(n: u32) -> Duration {
    Duration::from_micros(n.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_has_its_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut session = Session::new(None, 0, start);
        assert_eq!((session.waited(), session.connecting()), (None, None));
        session.seeks(at(5));
        session.asks("127.0.0.1:1".parse().unwrap());
        session.seeks(at(9));
        session.asks("127.0.0.1:2".parse().unwrap());
        session.is_connected(at(12));
        assert_eq!(session.answering(), None);
        session.is_answered(at(100));
        session.is_answered(at(200));
        let times = [session.waited(), session.connecting(), session.answering()];
        assert_eq!(times, [5, 7, 88].map(|ms| Some(Duration::from_millis(ms))));
        assert_eq!((session.attempts, session.backend), (2, Some("127.0.0.1:2".parse().unwrap())));
    }
}

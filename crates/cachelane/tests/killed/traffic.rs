//! A little traffic that goes on all the time, whatever becomes of the process under test.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lab::{End, Host};

use crate::comes_true;
use crate::stage::{Stage, TAKEN};

/// How long anything waits before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Between two packets, or two clients. A little: there may be ten hosts at a time.
const PACE: Duration = Duration::from_millis(10);

/// Something that counts what arrives, until it is dropped.
pub(crate) struct Traffic {
    what: &'static str,
    arrived: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// The kernel's own traffic of a stage: over its bridge, and to each of its devices.
    pub(crate) fn of(stage: &Stage) -> Vec<Traffic> {
        let [a, b] = [0, 1].map(|member| &stage.bridge.members[member]);
        let mut all = vec![Traffic::datagrams("over the bridge", &a.host, b)];
        for (what, link) in ["to eth0", "to eth1"].into_iter().zip(&stage.links) {
            all.push(Traffic::datagrams(what, &link.a.host, &link.b));
        }
        all
    }

    fn datagrams(what: &'static str, from: &Host, to: &End) -> Traffic {
        let at = (to.v4, TAKEN);
        let receiver = to.host.run(move || UdpSocket::bind(at)).expect("the host").expect("a port");
        let bound = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        let sender = from.run(bound).expect("the host").expect("a port");
        receiver.set_read_timeout(Some(LOOK)).expect("a timeout");
        let send = move || {
            // While a device has a program put on it, its link may be down.
            let _ = sender.send_to(&[0; 64], at);
        };
        let receive = move |arrived: &AtomicU64| {
            if receiver.recv(&mut [0; 64]).is_ok() {
                arrived.fetch_add(1, Relaxed);
            }
        };
        let mut traffic = Traffic::new(what);
        traffic.repeat(move |_| {
            send();
            thread::sleep(PACE);
        });
        traffic.repeat(receive);
        traffic
    }

    /// Clients of a relay, one after the other; it counts those that are served.
    pub(crate) fn clients(connect: impl Fn() -> std::io::Result<OwnedFd> + Send + 'static) -> Self {
        let mut traffic = Traffic::new("clients");
        traffic.repeat(move |served| {
            if connect().is_ok_and(|client| is_served(client).is_ok()) {
                served.fetch_add(1, Relaxed);
            }
            thread::sleep(PACE);
        });
        traffic
    }

    fn new(what: &'static str) -> Traffic {
        let (arrived, stop) = (Arc::default(), Arc::default());
        Traffic { what, arrived, stop, threads: Vec::new() }
    }

    fn repeat(&mut self, work: impl Fn(&AtomicU64) + Send + 'static) {
        let (arrived, stop) = (Arc::clone(&self.arrived), Arc::clone(&self.stop));
        self.threads.push(thread::spawn(move || {
            while !stop.load(Relaxed) {
                work(&arrived);
            }
        }));
    }

    /// Asserts that more arrives from now on.
    pub(crate) fn goes_on(&self, when: &str) {
        let before = self.arrived.load(Relaxed);
        let more = comes_true(|| self.arrived.load(Relaxed) > before + 3);
        assert!(more, "{when}: nothing arrives {} any more", self.what);
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // It may have failed, and so may the test.
            let _ = thread.join();
        }
    }
}

pub(crate) fn tcp(port: u16) -> std::io::Result<OwnedFd> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map(OwnedFd::from)
}

pub(crate) fn unix(path: &str) -> std::io::Result<OwnedFd> {
    UnixStream::connect(path).map(OwnedFd::from)
}

fn is_served(client: OwnedFd) -> std::io::Result<()> {
    // Reads and writes are alike.
    let mut client = UnixStream::from(client);
    client.set_read_timeout(Some(Duration::from_secs(1)))?;
    client.write_all(b"question")?;
    client.read_exact(&mut [0; 8])
}

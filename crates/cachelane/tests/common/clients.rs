//! A server and its clients, and what has become of them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server that sends back what it reads.
pub(crate) fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            std::thread::spawn(move || {
                let mut back = stream.try_clone().expect("a file");
                // Ends when the client does, by whatever.
                let _ = std::io::copy(&mut stream, &mut back);
            });
        }
    });
    addr
}

/// Sends a client's question and reads its answer to the end.
pub(crate) fn ask(mut client: &TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.write_all(b"question")?;
    client.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    match answer.as_str() {
        "question" => Ok(()),
        // As of a backend that was killed.
        short => Err(std::io::Error::other(format!("answered {short:?}"))),
    }
}

/// Clients that come without a pause, and what has become of them.
pub(crate) struct Storm {
    over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Tally>>,
}

/// Clients by how they fared.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) reset: u64,
}

impl Storm {
    pub(crate) fn on(addr: SocketAddr) -> Storm {
        Storm::paced(addr, Duration::ZERO)
    }

    /// Clients that pause for so long between two connections.
    pub(crate) fn paced(addr: SocketAddr, pause: Duration) -> Storm {
        let over = Arc::new(AtomicBool::new(false));
        let client = |_| {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                let mut tally = Tally::default();
                while !over.load(Relaxed) {
                    std::thread::sleep(pause);
                    match TcpStream::connect(addr).map(|client| ask(&client)) {
                        Ok(Ok(())) => tally.served += 1,
                        Ok(Err(_)) => tally.reset += 1,
                        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {
                            tally.reset += 1;
                        }
                        Err(_) => tally.refused += 1,
                    }
                }
                tally
            })
        };
        let clients = (0..4).map(client).collect();
        Storm { over, clients }
    }

    pub(crate) fn end(self) -> Tally {
        self.over.store(true, Relaxed);
        let add = |mut sum: Tally, one: JoinHandle<Tally>| {
            let one = one.join().expect("no client panicked");
            sum.served += one.served;
            sum.refused += one.refused;
            sum.reset += one.reset;
            sum
        };
        self.clients.into_iter().fold(Tally::default(), add)
    }
}

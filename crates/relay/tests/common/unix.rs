//! A relay with Unix sockets on one side or on both.

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use cachelane_relay::{Addr, Backend, Config, Engine, Listen, Relay};
use rustix::event::PollFlags;
use tempfile::TempDir;

use super::{PATIENCE, await_that, own_cpus, ready};

/// What is TCP and what is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    UnixToUnix,
    UnixToTcp,
    TcpToUnix,
}

pub const WAYS: [Way; 3] = [Way::UnixToUnix, Way::UnixToTcp, Way::TcpToUnix];

/// Where a backend of a test listens. Streams of both families are read and written alike, so all of
/// them are `TcpStream`s here.
pub enum Server {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Server {
    pub fn unix(path: &Path) -> Server {
        Server::Unix(UnixListener::bind(path).unwrap())
    }

    pub fn accept(&self) -> TcpStream {
        match self {
            Server::Unix(listener) => {
                assert!(ready(listener, PollFlags::IN, PATIENCE), "nobody reached the backend");
                stream(listener.accept().unwrap().0)
            }
            Server::Tcp(listener) => {
                assert!(ready(listener, PollFlags::IN, PATIENCE), "nobody reached the backend");
                stream(listener.accept().unwrap().0)
            }
        }
    }
}

pub fn stream(socket: impl Into<OwnedFd>) -> TcpStream {
    let stream = TcpStream::from(socket.into());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub fn connect(addr: &Addr) -> TcpStream {
    match addr {
        Addr::Ip(addr) => super::connect(*addr),
        Addr::Unix(addr) => stream(UnixStream::connect(addr.path().unwrap()).unwrap()),
    }
}

pub fn at(path: &Path) -> String {
    format!("unix:{}", path.display())
}

pub struct Rig {
    pub relay: Relay,
    pub server: Server,
    pub dir: TempDir,
}

pub fn front(dir: &TempDir) -> PathBuf {
    dir.path().join("front")
}

impl Rig {
    pub fn new(way: Way, engine: Engine) -> Rig {
        Rig::with(way, engine, |_| {})
    }

    pub fn with(way: Way, engine: Engine, adjust: impl FnOnce(&mut Config)) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let (server, to) = match way {
            Way::UnixToUnix | Way::TcpToUnix => {
                let path = dir.path().join("backend");
                (Server::unix(&path), at(&path))
            }
            Way::UnixToTcp => {
                let (listener, addr) = super::backend();
                (Server::Tcp(listener), addr.to_string())
            }
        };
        let listen = match way {
            Way::TcpToUnix => "127.0.0.1:0".to_string(),
            Way::UnixToUnix | Way::UnixToTcp => at(&front(&dir)),
        };
        let mut config = config(engine, &listen, &to);
        adjust(&mut config);
        Rig { relay: Relay::start(config).unwrap(), server, dir }
    }

    /// (client, backend)
    pub fn pair(&self) -> (TcpStream, TcpStream) {
        (connect(&self.relay.listening_on()[0]), self.server.accept())
    }

    pub fn await_empty(&self) {
        await_that("the relay let go of its connections", || self.relay.active() == 0);
    }
}

pub fn config(engine: Engine, listen: &str, to: &str) -> Config {
    let listen: Vec<Listen> = vec![listen.parse().unwrap()];
    let cpus = own_cpus().into_iter().take(2).collect();
    Config { engine, ..Config::new(listen, vec![to.parse::<Backend>().unwrap()], cpus) }
}

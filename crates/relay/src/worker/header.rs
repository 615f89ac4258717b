//! The PROXY header of a client: taken off the front of its stream, whatever its length, without a
//! buffer for it; and the header for the backend.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::Worker;
use crate::cause::Cause;
use crate::config::ProxyHeader;
use crate::connection::Phase;
use crate::proxy::{self, Header, Parsed};
use crate::repeated::say;
use crate::session::Client;
use crate::socket;

const CLOSED: &str = "the client closed before it was whole";
const GONE: &str = "the client reset its connection before it was whole";

impl Worker {
    /// What a backend is told of a client that named nobody else.
    pub(super) fn own_greeting(&self, key: usize) -> Vec<u8> {
        match self.shared.config.send_proxy {
            Some(version) => write(version, ends(&self.connections[key].client.socket)),
            None => Vec::new(),
        }
    }

    pub(super) fn read_header(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        let Phase::Header(begun) = &mut connection.phase else { return };
        if begun.is_none() {
            let mut first = [0; proxy::MOST_NEEDED];
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            let parsed = match rustix::net::recv(&connection.client.socket, &mut first, flags) {
                Ok((0, _)) => return self.refuse_header(key, Cause::Client, CLOSED),
                Ok((n, _)) => proxy::parse(&first[..n]),
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => return self.refuse_header(key, Cause::Client, GONE),
            };
            match parsed {
                Parsed::Header(header) => *begun = Some(Box::new(header)),
                Parsed::Incomplete if connection.client.hup => {
                    return self.refuse_header(key, Cause::Client, CLOSED);
                }
                Parsed::Incomplete => return,
                Parsed::Invalid(reason) => {
                    return self.refuse_header(key, Cause::Proxy, reason);
                }
            }
        }
        self.take_off_header(key);
    }

    /// Drops the header's bytes, as far as they are there. Once there are none left, it connects.
    fn take_off_header(&mut self, key: usize) {
        let connection = &mut self.connections[key];
        let Phase::Header(Some(header)) = &mut connection.phase else { return };
        let scratch = self.resources.scratch();
        while header.length > 0 {
            let most = header.length.min(scratch.len());
            match rustix::net::recv(
                &connection.client.socket,
                &mut scratch[..most],
                RecvFlags::DONTWAIT,
            ) {
                Ok((0, _)) => return self.refuse_header(key, Cause::Client, CLOSED),
                Ok((n, _)) => header.length -= n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return self.refuse_header(key, Cause::Client, GONE),
            }
        }
        let Header { addresses, .. } = **header;
        if let Some((client, _)) = addresses {
            connection.session.client = Some(Client::Ip(client));
        }
        if !self.lets_in(key) {
            return;
        }
        let greeting = match (self.shared.config.send_proxy, addresses) {
            (Some(version), Some(_)) => write(version, addresses),
            _ => self.own_greeting(key),
        };
        let client = addresses.map(|(client, _)| client.ip());
        self.begin_connecting(key, client, greeting);
    }

    pub(super) fn refuse_header(&mut self, key: usize, cause: Cause, reason: &str) {
        let client = self.connections[key].session.client;
        let client = client.map_or("a client".into(), |addr| format!("client {addr}"));
        say!(INFO, "{client} was refused for its PROXY header: {reason}");
        self.resources.counters.bad_proxy_header.add(1);
        self.refuse(key, cause);
    }
}

fn write(version: ProxyHeader, addresses: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    match version {
        ProxyHeader::V1 => proxy::write_v1(addresses),
        ProxyHeader::V2 => proxy::write(addresses),
    }
}

/// The client's address and the one that it connected to.
fn ends(client: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    Some((socket::peer_addr(client).ok()?, socket::local_addr(client).ok()?))
}

//! The congestion control of the relay's sockets.
//!
//! BBR paces: the kernel arms a timer for nearly every packet, and does so on loopback too, where
//! there is nothing to pace for. A host whose default it is pays more for these timers than for the
//! bytes (`cachelane bench relay --congestion-control bbr`). So where the host's default is a BBR, a
//! leg whose peer is on this host uses [`UNPACED`] instead. A route that names a congestion control
//! of its own overrides either: the kernel asks the route last.
//!
//! A socket that BBR has ever been set up for stays paced, whatever it is told later. So this is
//! decided before the handshake: of a backend's leg by the backend's address, of a client's leg, which
//! inherits from its listener, by the listener's. A listener on a loopback address has clients on this
//! host only. On any other address clients may be anywhere, and the host's default stays.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::Error;
use crate::addr::Addr;

/// Built into every kernel, and allowed to every user.
const UNPACED: &str = "reno";

/// Which congestion control the relay's sockets use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// The host's default, except that legs within the host are not paced.
    #[default]
    Auto,
    /// The host's default.
    System,
    /// The one of this name, for both legs.
    Named(String),
}

impl FromStr for CongestionControl {
    type Err = Error;

    fn from_str(s: &str) -> Result<CongestionControl, Error> {
        /// The longest name that the kernel knows (`TCP_CA_NAME_MAX` with its end).
        const LONGEST: usize = 15;
        let is_name = |c: u8| c.is_ascii_alphanumeric() || b"_-.".contains(&c);
        match s {
            "auto" => Ok(CongestionControl::Auto),
            "system" => Ok(CongestionControl::System),
            _ if (1..=LONGEST).contains(&s.len()) && s.bytes().all(is_name) => {
                Ok(CongestionControl::Named(s.into()))
            }
            _ => Err(Error::invalid(format!(
                "congestion control '{s}' is no name (expected auto, system, or a name such as \
                 cubic)"
            ))),
        }
    }
}

/// What the sockets of one relay are told, as found at its start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Congestion {
    everywhere: Option<String>,
    within_host: Option<String>,
    /// Addresses of this host besides loopback's.
    own: Vec<IpAddr>,
}

impl Congestion {
    /// # Errors
    /// A name that the kernel does not know, or does not allow this user.
    pub(crate) fn find(choice: &CongestionControl) -> Result<Congestion, Error> {
        match choice {
            CongestionControl::System => Ok(Congestion::default()),
            CongestionControl::Named(name) => {
                try_out(name)?;
                Ok(Congestion { everywhere: Some(name.clone()), ..Congestion::default() })
            }
            CongestionControl::Auto if default_paces() => {
                let within_host = Some(UNPACED.into());
                Ok(Congestion { within_host, own: own_addrs(), ..Congestion::default() })
            }
            CongestionControl::Auto => Ok(Congestion::default()),
        }
    }

    /// What to tell a socket that is to listen on `addr`; nothing leaves it the host's default.
    pub(crate) fn of_listener(&self, addr: &Addr) -> Option<&str> {
        self.of_leg(addr.ip()?.ip().to_canonical().is_loopback())
    }

    /// What to tell a socket that is to connect to `addr`.
    pub(crate) fn of_backend(&self, addr: &Addr) -> Option<&str> {
        let ip = addr.ip()?.ip().to_canonical();
        self.of_leg(ip.is_loopback() || self.own.contains(&ip))
    }

    fn of_leg(&self, is_within_host: bool) -> Option<&str> {
        let within_host = self.within_host.as_deref().filter(|_| is_within_host);
        self.everywhere.as_deref().or(within_host)
    }
}

/// Whether new sockets get a BBR, whichever version.
fn default_paces() -> bool {
    let name = any_socket().and_then(|socket| sockopt::tcp_congestion(&socket));
    name.is_ok_and(|name| name.contains("bbr"))
}

fn try_out(name: &str) -> Result<(), Error> {
    let tried = any_socket().and_then(|socket| sockopt::set_tcp_congestion(&socket, name));
    tried.map_err(|e| {
        let path = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
        let allowed = std::fs::read_to_string(path).unwrap_or_default();
        Error::invalid(format!(
            "congestion control '{name}' cannot be used: {e} (expected auto, system, or one of \
             net.ipv4.tcp_allowed_congestion_control: {})",
            allowed.trim()
        ))
    })
}

fn any_socket() -> rustix::io::Result<OwnedFd> {
    let socket = |family| rustix::net::socket(family, SocketType::STREAM, None);
    socket(AddressFamily::INET).or_else(|_| socket(AddressFamily::INET6))
}

fn own_addrs() -> Vec<IpAddr> {
    // Without them, only loopback counts as this host.
    let addrs = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addrs = addrs.filter_map(|interface| interface.address).filter_map(|addr| {
        let v4 = addr.as_sockaddr_in().map(|addr| IpAddr::V4(addr.ip()));
        v4.or_else(|| addr.as_sockaddr_in6().map(|addr| IpAddr::V6(addr.ip())))
    });
    addrs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_refused_with_what_was_expected() {
        for bad in ["", "two words", "a_name_of_sixteen", "re\0no", "cubic\n"] {
            let error = bad.parse::<CongestionControl>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{bad}'")) && error.contains("expected"), "{error}");
        }
        let named = CongestionControl::Named("cubic".into());
        assert_eq!("cubic".parse::<CongestionControl>().unwrap(), named);
    }

    #[test]
    fn a_name_that_the_kernel_does_not_know_is_refused_at_the_start() {
        let error = Congestion::find(&CongestionControl::Named("nonsense".into())).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("'nonsense'") && error.contains("reno"), "{error}");
    }

    #[test]
    fn only_legs_within_the_host_are_told_not_to_pace() {
        let own = vec!["192.0.2.7".parse().unwrap()];
        let within_host = Some(UNPACED.to_owned());
        let auto = Congestion { within_host, own, ..Congestion::default() };
        let named = Congestion { everywhere: Some("cubic".into()), ..Congestion::default() };
        for (addr, of_listener, of_backend) in [
            ("127.0.0.1:80", true, true),
            ("[::1]:80", true, true),
            ("[::ffff:127.0.0.9]:80", true, true),
            ("0.0.0.0:80", false, false),
            ("[::]:80", false, false),
            ("192.0.2.7:80", false, true),
            ("192.0.2.8:80", false, false),
        ] {
            let addr = &addr.parse().unwrap();
            assert_eq!(auto.of_listener(addr), of_listener.then_some(UNPACED), "{addr}");
            assert_eq!(auto.of_backend(addr), of_backend.then_some(UNPACED), "{addr}");
            assert_eq!(named.of_listener(addr), Some("cubic"), "{addr}");
            assert_eq!(Congestion::default().of_backend(addr), None, "{addr}");
        }
    }
}

//! Where a relay listens, and where its backends are: an address of IP or a Unix socket.

use std::ffi::OsStr;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketAddrAny, SocketAddrUnix};

use crate::Error;

/// An address to listen on or to connect to. As text, `127.0.0.1:80`, `[::1]:80`, `unix:/PATH` or
/// `unix:@NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Addr {
    /// TCP over IPv4 or IPv6.
    Ip(SocketAddr),
    /// A stream socket of this host's.
    Unix(UnixAddr),
}

/// The address of a Unix socket: a path, or a name in the network namespace (the "abstract" ones of
/// unix(7)). As text, `unix:/PATH` or `unix:@NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixAddr(Arc<Name>);

#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Name {
    /// Absolute.
    Path(Box<[u8]>),
    Abstract(Box<[u8]>),
}

/// What the text of such an address begins with.
pub(crate) const UNIX: &str = "unix:";

const EXPECTED: &str =
    "expected unix:PATH, or unix:@NAME for a name in the network namespace, without spaces";

impl UnixAddr {
    /// Bytes that a path or a name may have: `sun_path` without the zero that a path ends with and
    /// a name begins with (unix(7)).
    pub const LONGEST: usize = 107;

    /// The path, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match &*self.0 {
            Name::Path(path) => Some(Path::new(OsStr::from_bytes(path))),
            Name::Abstract(_) => None,
        }
    }

    /// What is hashed of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &*self.0 {
            Name::Path(bytes) | Name::Abstract(bytes) => bytes,
        }
    }

    /// As the kernel takes it.
    pub(crate) fn to_kernel(&self) -> rustix::io::Result<SocketAddrUnix> {
        match &*self.0 {
            Name::Path(path) => SocketAddrUnix::new(&**path),
            Name::Abstract(name) => SocketAddrUnix::new_abstract_name(name),
        }
    }

    /// None of a socket without a name.
    fn of_kernel(addr: &SocketAddrUnix) -> Option<UnixAddr> {
        let path = addr.path_bytes().filter(|path| !path.is_empty()).map(|p| Name::Path(p.into()));
        let name = || addr.abstract_name().map(|name| Name::Abstract(name.into()));
        path.or_else(name).map(|name| UnixAddr(Arc::new(name)))
    }

    /// From what stands behind `unix:`; a path that is relative is one of the present folder's.
    fn parse(name: &str) -> Result<UnixAddr, String> {
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && c != ',';
        if name.is_empty() || name == "@" {
            return Err(format!("has no name ({EXPECTED})"));
        }
        if !name.chars().all(is_plain) {
            return Err(format!("does not parse ({EXPECTED}, control characters and commas)"));
        }
        let name = match name.strip_prefix('@') {
            Some(name) => Name::Abstract(name.as_bytes().into()),
            None => {
                let path = std::path::absolute(name).map_err(|e| format!("has no path: {e}"))?;
                Name::Path(path.as_os_str().as_bytes().into())
            }
        };
        let addr = UnixAddr(Arc::new(name));
        match addr.bytes().len() {
            too_long if too_long > UnixAddr::LONGEST => Err(format!(
                "is too long: {too_long} bytes (expected at most {}, which is what the kernel takes)",
                UnixAddr::LONGEST
            )),
            _ => Ok(addr),
        }
    }
}

impl Addr {
    /// The address of IP, if it is one.
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            Addr::Ip(addr) => Some(*addr),
            Addr::Unix(_) => None,
        }
    }

    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Addr::Unix(_))
    }

    /// The address that a socket is bound to.
    pub(crate) fn of(socket: impl AsFd) -> std::io::Result<Addr> {
        let addr = rustix::net::getsockname(socket)?;
        Addr::of_kernel(&addr).ok_or_else(|| std::io::ErrorKind::AddrNotAvailable.into())
    }

    fn of_kernel(addr: &SocketAddrAny) -> Option<Addr> {
        if addr.address_family() == AddressFamily::UNIX {
            let addr = SocketAddrUnix::try_from(addr.clone()).ok()?;
            return UnixAddr::of_kernel(&addr).map(Addr::Unix);
        }
        SocketAddr::try_from(addr.clone()).ok().map(Addr::Ip)
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Addr {
        Addr::Ip(addr)
    }
}

impl From<UnixAddr> for Addr {
    fn from(addr: UnixAddr) -> Addr {
        Addr::Unix(addr)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Ip(addr) => addr.fmt(f),
            Addr::Unix(addr) => addr.fmt(f),
        }
    }
}

impl fmt::Display for UnixAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = if self.path().is_some() { "" } else { "@" };
        // A service manager's socket may have any name.
        let name = String::from_utf8_lossy(self.bytes());
        let is_odd = |c: char| c.is_whitespace() || c.is_control();
        match name.contains(is_odd) {
            true => {
                write!(f, "{UNIX}{at}{}", name.escape_debug().to_string().replace(' ', "\\x20"))
            }
            false => write!(f, "{UNIX}{at}{name}"),
        }
    }
}

impl FromStr for UnixAddr {
    type Err = Error;

    fn from_str(s: &str) -> Result<UnixAddr, Error> {
        let name = s.strip_prefix(UNIX).ok_or_else(|| format!("does not parse ({EXPECTED})"));
        name.and_then(UnixAddr::parse)
            .map_err(|why| Error::invalid(format!("Unix socket '{s}' {why}")))
    }
}

impl FromStr for Addr {
    type Err = Error;

    fn from_str(s: &str) -> Result<Addr, Error> {
        if s.starts_with(UNIX) {
            return s.parse().map(Addr::Unix);
        }
        let expected = "expected IP:PORT, [IPv6]:PORT or unix:PATH";
        s.parse()
            .map(Addr::Ip)
            .map_err(|_| Error::invalid(format!("address '{s}' does not parse ({expected})")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in
            ["127.0.0.1:80", "[::1]:80", "unix:/run/x.sock", "unix:@name", "unix:/run/a=b:c"]
        {
            let addr: Addr = text.parse().unwrap();
            assert_eq!(addr.to_string(), text);
            assert_eq!(addr.is_unix(), text.starts_with(UNIX));
        }
        let here: UnixAddr = "unix:x.sock".parse().unwrap();
        assert_eq!(here.path(), Some(&*std::env::current_dir().unwrap().join("x.sock")));
    }

    #[test]
    fn what_no_socket_can_be_called_is_named_with_what_was_expected() {
        let longest = format!("unix:/{}", "x".repeat(UnixAddr::LONGEST - 1));
        longest.parse::<UnixAddr>().unwrap().to_kernel().unwrap();
        format!("unix:@{}", "x".repeat(UnixAddr::LONGEST)).parse::<UnixAddr>().unwrap();
        for (given, says) in [
            ("unix:", "has no name"),
            ("unix:@", "has no name"),
            ("unix:/a b", "without spaces"),
            ("unix:/a\nb", "expected unix:PATH"),
            (&format!("{longest}x"), "108 bytes (expected at most 107"),
            ("unix", "expected IP:PORT"),
        ] {
            let error = given.parse::<Addr>().unwrap_err().to_string();
            assert!(error.contains(given) && error.contains(says), "{given}: {error}");
        }
    }

    #[test]
    fn an_address_takes_no_more_room_than_one_of_ip() {
        assert_eq!(size_of::<Option<Addr>>(), size_of::<Option<SocketAddr>>());
    }
}

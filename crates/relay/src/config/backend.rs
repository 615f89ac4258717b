//! One backend as it is told: where it is, how much it may get, how it is checked.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use crate::addr::{Addr, UNIX, UnixAddr};
use crate::{Error, Source, source};

/// Where connections may go. From an address alone, with [`From`]; from text, with [`FromStr`]:
/// `ADDR[,OPTION…]`, such as `db1:5432,weight=2,check,maxconn=100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Where it is.
    pub target: Target,
    /// Its share of the connections, beside the others'. 0: none.
    pub weight: u16,
    /// For connections whose TLS client asks for one of these names (SNI), and no others: `NAME`, or
    /// `*.DOMAIN` for one label before a domain; in lower case. Empty: for all that ask for a name
    /// that no backend has.
    pub names: Vec<String>,
    /// Used only while no other backend is up.
    pub backup: bool,
    /// The most connections to it at a time, to each of its addresses; more wait. `None`: any
    /// number.
    pub max_connections: Option<usize>,
    /// How long it gets fewer connections after it has come up, ever more of them.
    pub slow_start: Option<Duration>,
    /// Where connections to it come from, in place of [`Config::source`](crate::Config::source).
    pub source: Vec<Source>,
    /// Whether and how it is asked if it works.
    pub check: Option<Check>,
}

/// A backend's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// As it is.
    Addr(Addr),
    /// All addresses of a name, which is resolved from time to time.
    Name {
        /// The name of a host.
        host: String,
        /// A port of it.
        port: u16,
    },
}

/// How a backend is asked if it works: by a connection, and what is sent and expected over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// From one check to the next.
    pub interval: Duration,
    /// How long it may take.
    pub timeout: Duration,
    /// Checks in a row that must succeed before a backend that is down is up.
    pub rise: u32,
    /// Checks in a row that must fail before a backend that is up is down.
    pub fall: u32,
    /// What is sent once it is connected.
    pub send: Vec<u8>,
    /// What must be somewhere in the answer. Empty: none is waited for.
    pub expect: Vec<u8>,
}

impl Backend {
    /// The largest weight, as HAProxy has it.
    pub const MAX_WEIGHT: u16 = 256;
}

impl Default for Check {
    fn default() -> Check {
        let (interval, timeout) = (Duration::from_secs(2), Duration::from_secs(2));
        Check { interval, timeout, rise: 2, fall: 3, send: Vec::new(), expect: Vec::new() }
    }
}

impl From<SocketAddr> for Backend {
    fn from(addr: SocketAddr) -> Backend {
        Addr::Ip(addr).into()
    }
}

impl From<UnixAddr> for Backend {
    fn from(addr: UnixAddr) -> Backend {
        Addr::Unix(addr).into()
    }
}

impl From<Addr> for Backend {
    fn from(addr: Addr) -> Backend {
        Target::Addr(addr).into()
    }
}

impl From<Target> for Backend {
    fn from(target: Target) -> Backend {
        let (max_connections, slow_start, check) = (None, None, None);
        let (names, source) = (Vec::new(), Vec::new());
        Backend {
            target,
            weight: 1,
            names,
            backup: false,
            max_connections,
            slow_start,
            source,
            check,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Addr(addr) => addr.fmt(f),
            Target::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(s: &str) -> Result<Target, Error> {
        let refuse = |why: &str| {
            let expected = "expected IP:PORT, [IPv6]:PORT, NAME:PORT or unix:PATH";
            Err(Error::invalid(format!("backend '{s}' {why} ({expected})")))
        };
        let target = if s.starts_with(UNIX) {
            let addr: UnixAddr = s.parse()?;
            Target::Addr(addr.into())
        } else if let Ok(addr) = s.parse::<SocketAddr>() {
            Target::Addr(addr.into())
        } else {
            let Some((host, port)) = s.rsplit_once(':') else { return refuse("does not parse") };
            let is_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
            let (false, true, Ok(port)) =
                (host.is_empty(), host.chars().all(is_name), port.parse::<u16>())
            else {
                return refuse("does not parse");
            };
            // "10.0.0.300" is a mistake, not a name.
            if host.chars().all(|c| c.is_ascii_digit() || c == '.') {
                return refuse("does not parse");
            }
            Target::Name { host: host.into(), port }
        };
        match target {
            Target::Addr(Addr::Ip(addr)) if addr.port() == 0 => refuse("has port 0"),
            Target::Name { port: 0, .. } => refuse("has port 0"),
            target => Ok(target),
        }
    }
}

const OPTIONS: &str = "weight=0-256, sni=NAME, backup, maxconn=N, slowstart=TIME, source=ADDR, check, inter=TIME, \
                       timeout=TIME, rise=N, fall=N, send=TEXT or expect=TEXT";

impl FromStr for Backend {
    type Err = Error;

    fn from_str(s: &str) -> Result<Backend, Error> {
        let mut parts = split(s).into_iter();
        let target: Target = parts.next().unwrap_or_default().parse()?;
        let mut backend = Backend::from(target);
        for option in parts {
            backend.set(&option).map_err(|expected| {
                let target = &backend.target;
                let message =
                    format!("backend '{target}': option '{option}' (expected {expected})");
                Error::invalid(message)
            })?;
        }
        Ok(backend)
    }
}

impl Backend {
    /// Sets an option as it is written, or says what was expected.
    fn set(&mut self, option: &str) -> Result<(), &'static str> {
        match option {
            "backup" => self.backup = true,
            "check" => drop(self.check.get_or_insert_default()),
            _ => {
                let (name, value) = option.split_once('=').ok_or(OPTIONS)?;
                self.set_to(name, value)?;
            }
        }
        Ok(())
    }

    fn set_to(&mut self, name: &str, value: &str) -> Result<(), &'static str> {
        const POSITIVE: &str = "a number of at least 1";
        const TIME: &str = "a time such as 500ms, 2s or 1m";
        const NAME: &str = "a name such as example.com, or *.example.com";
        const TEXT: &str = r"text, with \r, \n, \t, \\, \, and \xHH for what cannot be typed";
        let positive = || value.parse::<u32>().ok().filter(|n| *n > 0).ok_or(POSITIVE);
        let time = || humantime::parse_duration(value).ok().filter(|t| !t.is_zero()).ok_or(TIME);
        let bytes = || unescape(value).filter(|text| !text.is_empty()).ok_or(TEXT);
        match name {
            "weight" => {
                let weight = value.parse().ok().filter(|weight| *weight <= Backend::MAX_WEIGHT);
                self.weight = weight.ok_or("a number from 0 to 256")?;
            }
            "sni" => self.names.push(server_name(value).ok_or(NAME)?),
            "maxconn" => self.max_connections = Some(positive()? as usize),
            "source" => self.source.push(value.parse().map_err(|_| source::EXPECTED)?),
            "slowstart" => self.slow_start = Some(time()?),
            "inter" => self.checked().interval = time()?,
            "timeout" => self.checked().timeout = time()?,
            "rise" => self.checked().rise = positive()?,
            "fall" => self.checked().fall = positive()?,
            "send" => self.checked().send = bytes()?,
            "expect" => self.checked().expect = bytes()?,
            _ => return Err(OPTIONS),
        }
        Ok(())
    }

    /// An option of a check asks for one.
    fn checked(&mut self) -> &mut Check {
        self.check.get_or_insert_default()
    }
}

/// A name to ask a TLS server for, or a pattern of such, as `tls::matches` compares it.
fn server_name(name: &str) -> Option<String> {
    let is_label = |label: &str| {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        !label.is_empty() && label.chars().all(is_of_name)
    };
    let fixed = name.strip_prefix("*.").unwrap_or(name);
    fixed.split('.').all(is_label).then(|| name.to_ascii_lowercase())
}

/// The parts between commas; a comma after a backslash belongs to its part.
fn split(s: &str) -> Vec<String> {
    let (mut parts, mut escaped) = (vec![String::new()], false);
    for c in s.chars() {
        match c {
            ',' if !escaped => parts.push(String::new()),
            _ => parts.last_mut().expect("one from the start").push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    parts
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'0' => 0,
            b'x' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other @ (b'\\' | b',') => other,
            _ => return None,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_read_as_haproxy_users_would_guess() {
        let given = r"db1:5432,weight=2,check,sni=Db.example,sni=*.db.example,maxconn=100,backup,slowstart=30s,source=10.0.0.9,source=client,inter=5s,timeout=1s,rise=1,fall=4,send=PING\r\n\,,expect=\x2bPONG";
        let expected = Backend {
            target: Target::Name { host: "db1".into(), port: 5432 },
            weight: 2,
            names: vec!["db.example".into(), "*.db.example".into()],
            backup: true,
            max_connections: Some(100),
            slow_start: Some(Duration::from_secs(30)),
            source: vec![Source::Addr([10, 0, 0, 9].into()), Source::Client],
            check: Some(Check {
                interval: Duration::from_secs(5),
                timeout: Duration::from_secs(1),
                rise: 1,
                fall: 4,
                send: b"PING\r\n,".to_vec(),
                expect: b"+PONG".to_vec(),
            }),
        };
        assert_eq!(given.parse::<Backend>().unwrap(), expected);
        for given in ["10.0.0.5:80", "[::1]:80", "a-b.c:9", "unix:/run/x.sock", "unix:@x"] {
            let backend: Backend = given.parse().unwrap();
            assert_eq!((backend.target.to_string().as_str(), backend.weight), (given, 1));
        }
        let weighed: Backend = "unix:/run/x.sock,weight=2".parse().unwrap();
        assert_eq!((weighed.target.to_string().as_str(), weighed.weight), ("unix:/run/x.sock", 2));
        let implied: Backend = "1.2.3.4:5,inter=1s".parse().unwrap();
        assert_eq!(implied.check.unwrap().interval, Duration::from_secs(1));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        for (given, named, expected) in [
            ("", "''", "expected IP:PORT"),
            ("x", "'x'", "expected IP:PORT"),
            (":80", "':80'", "NAME:PORT"),
            ("a b:80", "'a b:80'", "NAME:PORT"),
            ("1.2.3.4:", "'1.2.3.4:'", "NAME:PORT"),
            ("10.0.0.300:80", "'10.0.0.300:80'", "IP:PORT"),
            ("name:70000", "'name:70000'", "NAME:PORT"),
            ("[::1]", "'[::1]'", "[IPv6]:PORT"),
            ("1.2.3.4:0", "port 0", "NAME:PORT"),
            ("name:0", "port 0", "NAME:PORT"),
            ("unix:", "'unix:'", "unix:PATH"),
            ("unix:/a b", "'unix:/a b'", "without spaces"),
            ("a:1,wieght=2", "'wieght=2'", "weight=0-256"),
            ("a:1,weight=257", "'weight=257'", "from 0 to 256"),
            ("a:1,weight", "'weight'", "weight=0-256"),
            ("a:1,backup=1", "'backup=1'", "backup,"),
            ("a:1,sni=", "'sni='", "*.example.com"),
            ("a:1,sni=*", "'sni=*'", "*.example.com"),
            ("a:1,sni=a..b", "'sni=a..b'", "*.example.com"),
            ("a:1,maxconn=0", "'maxconn=0'", "at least 1"),
            ("a:1,source=eth0", "'source=eth0'", "or client"),
            ("a:1,inter=soon", "'inter=soon'", "500ms"),
            ("a:1,slowstart=0s", "'slowstart=0s'", "500ms"),
            (r"a:1,send=\q", r"'send=\q'", r"\xHH"),
            (r"a:1,expect=\x1", r"'expect=\x1'", r"\xHH"),
            ("a:1,", "''", "weight=0-256"),
        ] {
            let error = given.parse::<Backend>().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(expected), "{given}: {error}");
        }
    }
}

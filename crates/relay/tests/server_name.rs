//! Routing by the name that a TLS client asks for, with OpenSSL at both ends, and without TLS.

mod common;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cachelane_relay::{Backend, Config, Engine, ProxyHeader, Relay};
use common::*;

/// Servers by name: what backends are told, and the common name of their certificates.
const SERVERS: [(&str, &str); 3] =
    [(",sni=a.example", "a"), (",sni=*.b.example,sni=b.example", "b"), ("", "everybody")];

#[test]
fn a_tls_client_reaches_the_server_of_the_name_that_it_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let servers = SERVERS.map(|(_, name)| Server::start(folder.path(), name));
    let backends = SERVERS
        .iter()
        .zip(&servers)
        .map(|((names, _), server)| format!("{}{names}", server.addr).parse::<Backend>().unwrap());
    let relay = relay(backends.collect(), |_| {});
    for (asked, expected) in [
        (Some("a.example"), "a"),
        (Some("A.Example"), "a"),
        (Some("x.b.example"), "b"),
        (Some("b.example"), "b"),
        (Some("x.a.example"), "everybody"),
        (None, "everybody"),
    ] {
        let said = talk(relay.addrs()[0], asked);
        assert!(said.contains(&format!("subject=CN = {expected}\n")), "{asked:?}: {said}");
        // The names of protocols pass through: the server chose one of those that were offered.
        assert!(said.contains("ALPN protocol: h2"), "{asked:?}: {said}");
    }
    assert_eq!(relay.stats().no_route, 0);
}

#[test]
fn a_name_that_nobody_has_is_refused_and_a_slow_or_silent_client_is_not_waited_for_for_ever() {
    let (listener, addr) = backend();
    let backends = || vec![format!("{addr},sni=a.example").parse().unwrap()];
    let short = |config: &mut Config| config.connect_timeout = Duration::from_millis(300);
    let relay = relay(backends(), short);
    let refused = |what: &dyn Fn(&TcpStream)| {
        let before = relay.stats().no_route;
        let client = connect(relay.addrs()[0]);
        what(&client);
        expect_reset(&client);
        assert_eq!(relay.stats().no_route, before + 1);
    };
    refused(&|client| send_all(client, &hello("b.example")));
    refused(&|client| send_all(client, b"GET / HTTP/1.1\r\n\r\n"));
    refused(&|_| {});
    refused(&|client| send_all(client, &hello("a.example")[..40]));
    refused(&|client| {
        send_all(client, &hello("a.example")[..40]);
        client.shutdown(Shutdown::Write).unwrap();
    });
    assert!(try_accept(&listener, Duration::from_millis(1)).is_none());
}

#[test]
fn a_hello_in_pieces_and_behind_a_proxy_header_arrives_whole() {
    let (listener, addr) = backend();
    let named = || vec![format!("{addr},sni=a.example").parse::<Backend>().unwrap()];
    let hello = hello("a.example");
    let in_pieces = relay(named(), |_| {});
    let client = connect(in_pieces.addrs()[0]);
    for piece in hello.chunks(hello.len() / 20) {
        send_all(&client, piece);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(receive(&accept(&listener), hello.len()), hello);

    let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 443\r\n";
    let behind = relay(named(), |config| {
        (config.accept_proxy, config.send_proxy) = (true, Some(ProxyHeader::V1));
    });
    let client = connect(behind.addrs()[0]);
    let all = [&header[..], &hello].concat();
    send_all(&client, &all);
    assert_eq!(receive(&accept(&listener), all.len()), all);
}

/// Each look reads the message from its start, so their number is bounded.
#[test]
fn a_hello_byte_by_byte_costs_a_bounded_number_of_looks() {
    let (_listener, addr) = backend();
    let relay = relay(vec![format!("{addr},sni=a.example").parse().unwrap()], |_| {});
    let client = connect(relay.addrs()[0]);
    // A record that says it is long, and never ends.
    let endless = [&[22, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb][..], &[0; 4000]].concat();
    let mut refused = false;
    for byte in endless.chunks(1) {
        refused = (&client).write_all(byte).is_err();
        if refused {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(refused, "{} bytes, one by one, were looked at", endless.len());
}

fn relay(backends: Vec<Backend>, adjust: impl FnOnce(&mut Config)) -> Relay {
    let mut config = config(Engine::Auto, &[]);
    config.backends = backends;
    adjust(&mut config);
    Relay::start(config).unwrap()
}

/// A client's first message that asks for `name`.
fn hello(name: &str) -> Vec<u8> {
    let prefixed = |data: &[u8]| [&(data.len() as u16).to_be_bytes()[..], data].concat();
    let names = prefixed(&[&[0][..], &prefixed(name.as_bytes())].concat());
    let algorithms = prefixed(&[4, 3]);
    let extensions = [&[0, 0][..], &prefixed(&names), &[0, 13], &prefixed(&algorithms)].concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &prefixed(&extensions)].concat();
    let message = [&[1, 0][..], &prefixed(&body)].concat();
    [&[22, 3, 1][..], &prefixed(&message)].concat()
}

/// What OpenSSL's client says of the server that it reaches.
fn talk(addr: SocketAddr, name: Option<&str>) -> String {
    let mut client = Command::new("openssl");
    client.args(["s_client", "-alpn", "h2,http/1.1", "-connect", &addr.to_string()]);
    match name {
        Some(name) => client.args(["-servername", name]),
        None => client.arg("-noservername"),
    };
    let output = client.stdin(Stdio::null()).output().expect("openssl (scripts/deps build)");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// OpenSSL's server.
struct Server {
    process: Child,
    addr: SocketAddr,
}

impl Server {
    /// With a certificate for the common name `name`.
    fn start(folder: &Path, name: &str) -> Server {
        let [key, certificate] = ["key", "crt"].map(|kind| folder.join(format!("{name}.{kind}")));
        let [key, certificate] = [&key, &certificate].map(|path| path.to_str().unwrap());
        let subject = format!("/CN={name}");
        let made = Command::new("openssl")
            .args(["req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt"])
            .args([
                "ec_paramgen_curve:P-256",
                "-subj",
                &subject,
                "-keyout",
                key,
                "-out",
                certificate,
            ])
            .stderr(Stdio::null())
            .status();
        assert!(made.expect("openssl (scripts/deps build)").success());
        // It takes a port of the kernel's choice, and says which.
        let mut process = Command::new("openssl")
            .args(["s_server", "-accept", "127.0.0.1:0", "-alpn", "h2", "-key", key, "-cert"])
            .arg(certificate)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let accepts = output.lines().map(Result::unwrap).find(|line| line.starts_with("ACCEPT"));
        let accepts = accepts.expect("openssl s_server listens");
        let addr = accepts.trim_start_matches("ACCEPT").trim().parse().expect(&accepts);
        Server { process, addr }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whether it had ended by itself changes nothing.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

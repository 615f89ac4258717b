//! The example, between two test hosts: an ordinary UDP client gets its datagrams back.

use std::io::{BufRead as _, BufReader, ErrorKind};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lab::{Lab, Link, LinkOptions};

const PORT: u16 = 7777;

/// The program while it runs; killed when dropped.
struct Echo(Child);

impl Echo {
    fn start(link: &Link) -> Echo {
        let mut command = Command::new(env!("CARGO_BIN_EXE_udp-echo"));
        command.args([&link.b.device, &PORT.to_string()]).stderr(Stdio::piped());
        let mut child =
            link.b.host.run(move || command.spawn()).expect("the host").expect("it starts");
        let mut line = String::new();
        let log = child.stderr.as_mut().expect("a pipe");
        BufReader::new(log).read_line(&mut line).expect("text");
        let echo = Echo(child);
        assert!(line.starts_with("echoing UDP port 7777"), "{line}");
        echo
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends datagrams of these sizes, all at once, and says whether they all came back as they were.
fn exchange(link: &Link, to: SocketAddr, sizes: &[usize]) -> bool {
    let client = || {
        let any: SocketAddr =
            if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("one");
        let socket = UdpSocket::bind(any).expect("a socket");
        socket.connect(to).expect("a route");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        let datagram = |&size: &usize| (0..size).map(|n| (n * 7 + size) as u8).collect::<Vec<u8>>();
        sizes.iter().for_each(|size| {
            // Refused is the answer to an earlier one, when nobody is there.
            let _ = socket.send(&datagram(size));
        });
        let mut buffer = [0; 2000];
        sizes.iter().all(|size| {
            let answer = socket.recv(&mut buffer);
            answer.is_ok_and(|len| buffer[..len] == datagram(size))
        })
    };
    link.a.host.run(client).expect("the host")
}

#[test]
fn root_an_ordinary_client_gets_its_datagrams_back_and_all_else_is_the_kernels() {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "skipped: root_an_ordinary_client_gets_its_datagrams_back_and_all_else_is_the_kernels: \
             needs root"
        );
        return;
    }
    let lab = Lab::new("udp-echo").expect("a lab");
    let (a, b) = (lab.host("client").expect("a host"), lab.host("server").expect("a host"));
    let link = lab.link(&a, &b, LinkOptions::default()).expect("a link");
    let echo = Echo::start(&link);
    let sizes: Vec<usize> = (0..1400).step_by(100).collect();
    // More than there are frames in all, so that every frame has gone round.
    for _ in 0..400 {
        assert!(exchange(&link, link.b.socket(PORT), &sizes));
    }
    assert!(exchange(&link, link.b.socket_v6(PORT), &sizes));
    let other = link.b.socket(PORT + 1);
    let refused = a.run(move || TcpStream::connect(other)).expect("the host").expect_err("nobody");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "the kernel answers");
    drop(echo);
    assert!(!exchange(&link, link.b.socket(PORT), &[100]), "nobody is left to answer");
    let server = link.b.clone();
    let bind = move || UdpSocket::bind(server.socket(PORT));
    let socket = b.run(bind).expect("the host").expect("the port is free");
    let server = b.spawn_thread("server", move || {
        let mut buffer = [0; 100];
        let (len, from) = socket.recv_from(&mut buffer).expect("a datagram");
        socket.send_to(&buffer[..len], from).expect("an answer");
    });
    assert!(exchange(&link, link.b.socket(PORT), &[100]), "the kernel has the port again");
    server.expect("a thread").join().expect("no panic");
}

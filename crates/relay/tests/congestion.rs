//! Which congestion control the relay's legs have, on a host whose default is a BBR.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use cachelane_relay::{Config, CongestionControl, Listen, Relay};
use lab::Lab;
use rustix::net::sockopt;

/// Relays one byte, and says what the kernel shows of the relay's two legs: the client's and the
/// backend's.
fn legs(lab_host: &lab::Host, listen: &str, choice: CongestionControl) -> [String; 2] {
    let relayed = lab_host.run(|| {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = backend.local_addr().unwrap();
        let mut config =
            Config::new(vec![listen.parse::<Listen>().unwrap()], vec![to], "0".parse().unwrap());
        config.congestion_control = choice;
        let relay = Relay::start(config).unwrap();
        let via = SocketAddr::from(([127, 0, 0, 1], relay.addrs()[0].port()));
        let mut client = TcpStream::connect(via).unwrap();
        let (mut server, _) = backend.accept().unwrap();
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        (relay, client, server)
    });
    let (_relay, client, server) = relayed.unwrap();
    // The ends of the test are no part of the relay, and have the host's default.
    assert_eq!(sockopt::tcp_congestion(&client).unwrap(), "bbr");
    // The relay's own sockets are in no hand of ours: `ss` asks the kernel for them.
    [client.peer_addr().unwrap(), server.peer_addr().unwrap()].map(|local| {
        let filter = format!("sport = :{}", local.port());
        let text = lab_host.command("ss").args(["-Htin", "state", "established", &filter]).run();
        let text = text.unwrap();
        let name = text.split_whitespace().find(|word| ["bbr", "reno", "cubic"].contains(word));
        name.unwrap_or_else(|| panic!("no congestion control of {local} in: {text}")).to_owned()
    })
}

#[test]
fn root_legs_within_a_host_whose_default_is_bbr_are_not_paced() {
    const NAME: &str = "root_legs_within_a_host_whose_default_is_bbr_are_not_paced";
    if !lab::testing::root(NAME) {
        return;
    }
    let lab = Lab::new("congestion").unwrap();
    let host = lab.host("host").unwrap();
    if let Err(error) = host.set_sysctl("net.ipv4.tcp_congestion_control", "bbr") {
        eprintln!("skipped: {NAME}: this kernel has no BBR: {error}");
        return;
    }
    use CongestionControl::{Auto, Named, System};
    for (listen, choice, expected) in [
        ("127.0.0.1:0", Auto, ["reno", "reno"]),
        // Its clients may be anywhere.
        ("0.0.0.0:0", Auto, ["bbr", "reno"]),
        ("127.0.0.1:0", System, ["bbr", "bbr"]),
        ("0.0.0.0:0", Named("reno".into()), ["reno", "reno"]),
    ] {
        assert_eq!(legs(&host, listen, choice.clone()), expected, "{listen}, {choice:?}");
    }
    // What the administrator chose for a route stays.
    let route = "route replace local 127.0.0.1 dev lo table local congctl lock bbr";
    host.ip(route.split(' ')).unwrap();
    assert_eq!(legs(&host, "127.0.0.1:0", Auto), ["bbr", "bbr"], "the route's own");
    host.set_sysctl("net.ipv4.tcp_congestion_control", "reno").unwrap();
}

//! Several receive queues: packets tell the CPU which of them they came by.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::steered::{Steered, pin};

const QUEUES: u32 = 3;
/// The kernel spreads them over the queues.
const FLOWS: u16 = 24;
const MESSAGES: u32 = 40;

fn connected(on: &Steered, number: u16) -> (UdpSocket, UdpSocket) {
    let server = SocketAddr::new(on.link.b.v4.into(), 7000 + number);
    let client = SocketAddr::new(on.link.a.v4.into(), 8000 + number);
    let at = |host: &lab::Host, local: SocketAddr, remote: SocketAddr| {
        let socket = host.run(|| UdpSocket::bind(local)).expect("it runs").expect("it binds");
        socket.connect(remote).expect("it connects");
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("it is set");
        socket
    };
    (at(&on.a, client, server), at(&on.b, server, client))
}

#[test]
fn root_a_cpu_counts_the_packets_of_each_queue_and_delivers_them_unchanged() {
    if !lab::testing::root(
        "root_a_cpu_counts_the_packets_of_each_queue_and_delivers_them_unchanged",
    ) {
        return;
    }
    let on = Steered::new(QUEUES);
    let flows: Vec<_> = (0..FLOWS).map(|number| connected(&on, number)).collect();
    let cpu_of = |flow: usize| on.cpus[flow % on.cpus.len()];
    for message in 0..MESSAGES {
        for (flow, (client, server)) in flows.iter().enumerate() {
            // It arrives where it is sent, which is not where it is received.
            pin(cpu_of(flow + 1));
            let text = format!("message {message} of flow {flow}");
            client.send(text.as_bytes()).expect("it is sent");
            pin(cpu_of(flow));
            let mut buffer = [0; 64];
            let length = server.recv(&mut buffer).expect("it is received");
            assert_eq!(std::str::from_utf8(&buffer[..length]), Ok(text.as_str()));
        }
    }
    let mut by_queue = [0; QUEUES as usize];
    for (queue, packets) in (0..QUEUES).zip(&mut by_queue) {
        for cpu in on.cpus.iter().copied() {
            assert_eq!(on.sent(queue, cpu), on.taken(queue, cpu), "queue {queue}, CPU {cpu}");
            *packets += on.sent(queue, cpu);
        }
    }
    let counters = on.loaded.counters().expect("the counters are read");
    assert_eq!(u64::from(by_queue.iter().sum::<u32>()), counters.steered);
    // The first packet of each has no record, and some have to wait for the end of a poll.
    let steered = u64::from(u32::from(FLOWS) * MESSAGES * 3 / 4);
    assert!(counters.steered >= steered, "{counters:?}");
    assert!(by_queue.iter().filter(|packets| **packets > 0).count() > 1, "{by_queue:?}");
}

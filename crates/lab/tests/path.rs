//! A path delays what it carries, by as much as was asked, in order, and loses nothing that its queue
//! has room for.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use cachelane_lab::testing::root;
use cachelane_lab::traffic::{BulkOptions, BulkServer, BulkSession};
use cachelane_lab::{ErrorKind, Lab, Path, PathOptions};

const LIMIT: Duration = Duration::from_secs(20);

fn path(lab: &Lab, options: PathOptions) -> Path {
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    lab.path(&a, &b, options).expect("a path")
}

/// The least of some round trips over a connection.
fn round_trip(path: &Path, port: u16) -> Duration {
    let address = path.b.socket(port);
    let listener = path.b.host.run(|| TcpListener::bind(address)).unwrap().expect("listens");
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut byte = [0];
        while stream.read(&mut byte).is_ok_and(|n| n > 0) {
            stream.write_all(&byte).expect("answers");
        }
    });
    let connect = || TcpStream::connect_timeout(&address, LIMIT);
    let mut stream = path.a.host.run(connect).unwrap().expect("connects");
    stream.set_nodelay(true).expect("is set");
    let trips = (0..5).map(|_| {
        let start = Instant::now();
        stream.write_all(&[1]).expect("asks");
        stream.read_exact(&mut [0]).expect("is answered");
        start.elapsed()
    });
    let least = trips.min().expect("some");
    drop(stream);
    echo.join().expect("ends well");
    least
}

#[test]
fn root_a_path_takes_as_long_as_it_says() {
    if !root("root_a_path_takes_as_long_as_it_says") {
        return;
    }
    let lab = Lab::new("path").expect("a lab");
    let path = path(&lab, PathOptions::default());
    for (port, ms) in [(4000, 50), (4001, 10), (4002, 0)] {
        let delay = Duration::from_millis(ms);
        path.set_delay(delay);
        let trip = round_trip(&path, port);
        // Never less. More is what a busy machine makes of it.
        assert!(trip >= 2 * delay, "{ms} ms: {trip:?}");
        assert!(trip < 2 * delay + Duration::from_millis(100), "{ms} ms: {trip:?}");
    }
}

#[test]
fn root_a_path_keeps_order_and_loses_nothing_that_its_queue_has_room_for() {
    if !root("root_a_path_keeps_order_and_loses_nothing_that_its_queue_has_room_for") {
        return;
    }
    let lab = Lab::new("path").expect("a lab");
    let delay = Duration::from_millis(20);
    let path = path(&lab, PathOptions { delay, ..PathOptions::default() });
    let options = BulkOptions { verify: true, ..BulkOptions::default() };
    let server = BulkServer::start(&path.b.host, path.b.socket(4000), &options).expect("listens");
    let session = BulkSession::start(&path.a.host, server.address(), &options).expect("connects");
    let carried = session.measure(&server, Duration::from_secs(1)).expect("bytes");
    let (sent, received) = session.finish(&server, LIMIT).expect("ends");
    assert_eq!((sent.sent, received.corrupt, received.failed), (received.received, 0, 0));
    assert!(carried.received > 1 << 20, "{carried:?}");
    assert_eq!(path.dropped(), 0);
}

#[test]
fn root_a_path_drops_what_its_queue_has_no_room_for() {
    if !root("root_a_path_drops_what_its_queue_has_no_room_for") {
        return;
    }
    let lab = Lab::new("path").expect("a lab");
    // A thousand a second, of which one second's worth may wait.
    let (delay, rate, queue) = (Duration::ZERO, 1_000_000, 1_000_000);
    let path = path(&lab, PathOptions { delay, rate, queue });
    let receiver =
        path.b.host.run(|| UdpSocket::bind(path.b.socket(4000))).unwrap().expect("binds");
    let sender = path.a.host.run(|| UdpSocket::bind(path.a.socket(0))).unwrap().expect("binds");
    receiver.set_read_timeout(Some(Duration::from_millis(500))).expect("is set");
    // The first one has the address looked up.
    sender.send_to(&[0; 950], path.b.socket(4000)).expect("sends");
    receiver.recv(&mut [0; 950]).expect("arrives");
    let start = Instant::now();
    for number in 0..3000u32 {
        let mut bytes = [0; 950];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        sender.send_to(&bytes, path.b.socket(4000)).expect("sends");
    }
    let mut numbers = Vec::new();
    let mut bytes = [0; 2000];
    while receiver.recv(&mut bytes).is_ok() {
        numbers.push(u32::from_be_bytes(bytes[..4].try_into().expect("four")));
    }
    // All that waits but the last's half second without another.
    let elapsed = start.elapsed().as_secs_f64();
    assert!(numbers.is_sorted(), "{numbers:?}");
    // The hosts say a word of their own now and then.
    assert!((3000..3010).contains(&(numbers.len() as u64 + path.dropped())), "{}", numbers.len());
    assert!(numbers.len() >= 950, "{} arrived", numbers.len());
    assert!(numbers.len() as f64 * 1e3 <= (elapsed + 0.1) * rate as f64, "{elapsed} s");
}

#[test]
fn a_path_of_the_machine_itself_is_refused() {
    let lab = Lab::new("path").expect("a lab");
    let here = cachelane_lab::Host::here().expect("a host");
    let refused = lab.path(&here, &here, PathOptions::default());
    assert_eq!(refused.map(drop).expect_err("a path").kind(), ErrorKind::Invalid);
}

//! Raw frames: what is sent from one device is captured at the other, whole and nothing else.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use cachelane_lab::testing::root;
use cachelane_lab::{
    ErrorKind, Lab, LinkOptions,
    traffic::{FrameCapture, FrameSender, FrameTarget},
};

/// A frame of a protocol of our own, which no host's stack sends.
fn frame(to: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = vec![7; len];
    frame[..6].copy_from_slice(&to);
    frame[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 9, 0x88, 0xb5]);
    frame
}

fn is_ours(bytes: &[u8]) -> bool {
    bytes[12..14] == [0x88, 0xb5]
}

#[test]
fn root_frames_arrive_as_they_were_sent() {
    if !root("root_frames_arrive_as_they_were_sent") {
        return;
    }
    let lab = Lab::new("frames").expect("a lab");
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let options = LinkOptions { mtu: 9000, ..Default::default() };
    let link = lab.link(&a, &b, options).expect("a link");
    let sender = FrameSender::open(&a, &link.a.device).expect("a sender");
    let mut own = FrameCapture::open(&a, &link.a.device).expect("a capture");
    let mut both = FrameCapture::both_ways(&a, &link.a.device).expect("a capture");
    let mut capture = FrameCapture::open(&b, &link.b.device).expect("a capture");
    let cases = [
        (link.b.mac.0, 60, FrameTarget::Host),
        ([2, 0, 0, 0, 0, 8], 1514, FrameTarget::Other),
        ([0xff; 6], 60, FrameTarget::Broadcast),
        ([3, 0, 0, 0, 0, 1], 60, FrameTarget::Multicast),
        (link.b.mac.0, 9014, FrameTarget::Host),
    ];
    for (to, len, target) in cases {
        let sent = frame(to, len);
        sender.send(&sent).expect("it is sent");
        let limit = Duration::from_secs(5);
        let received = loop {
            let frame = capture.next(limit).expect("the device is up").expect("it arrives");
            if is_ours(&frame.bytes) {
                break frame;
            }
        };
        assert_eq!((received.bytes, received.to), (sent, target));
    }
    let own = own.waiting().expect("the device is up");
    assert!(!own.iter().any(|frame| is_ours(&frame.bytes)), "a host's own frames were captured");
    let both = both.waiting().expect("the device is up");
    let sent = both.iter().filter(|frame| is_ours(&frame.bytes) && frame.to == FrameTarget::Sent);
    assert_eq!(sent.count(), cases.len());
    let long = sender.send(&frame(link.b.mac.0, 9100)).expect_err("longer than the MTU");
    assert_eq!(long.kind(), ErrorKind::Invalid, "{long}");
}

#[test]
fn root_gso_packets_are_captured_whole() {
    if !root("root_gso_packets_are_captured_whole") {
        return;
    }
    let lab = Lab::new("gso").expect("a lab");
    let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
    let link = lab.link(&a, &b, LinkOptions::default()).expect("a link");
    let mut capture = FrameCapture::open(&b, &link.b.device).expect("a capture");
    let address = link.b.socket(4000);
    let listener = b.run(|| TcpListener::bind(address)).unwrap().expect("the address is ours");
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.read_to_end(&mut Vec::new()).expect("all of it")
    });
    let mut stream = a.run(|| TcpStream::connect(address)).unwrap().expect("connects");
    stream.write_all(&vec![7; 4 << 20]).expect("sends");
    drop(stream);
    assert_eq!(receiver.join().expect("the receiver ends well"), 4 << 20);
    let longest = capture.waiting().expect("the device is up").iter().map(|f| f.bytes.len()).max();
    assert!(longest > Some(30_000), "{longest:?}");
}

#[test]
fn root_a_device_that_is_not_there_is_named() {
    if !root("root_a_device_that_is_not_there_is_named") {
        return;
    }
    let lab = Lab::new("nodev").expect("a lab");
    let host = lab.host("a").expect("a host");
    let error = FrameCapture::open(&host, "eth7").expect_err("there is none");
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::Invalid, "a: no device eth7")
    );
}

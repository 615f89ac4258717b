//! VLANs on real frames: the packet path on a port, with maps that are made by hand and no bridge
//! behind it, so that it needs no kernel whose bridges look at VLANs.

use std::time::Duration;

use lab::traffic::{FrameCapture, FrameSender};
use lab::{End, Lab, LinkOptions};

use super::super::constants::{PORT_IN, PORT_OUT, PORT_STRAIGHT};
use super::super::*;
use super::configure;
use crate::vlans::Membership;
use crate::{Counters, Reason};

const Q: u16 = 0x8100;
const AD: u16 = 0x88a8;
/// A protocol of our own.
const OWN: u16 = 0x88b5;

/// Where a frame comes in, and where it goes.
const IN: u16 = 1;
const OUT: u16 = 2;

/// What a test sends and expects: tags from the outermost in, as protocol and contents.
type Tags<'a> = &'a [(u16, u16)];

const PLAIN: Membership = Membership { pvid: false, untagged: false, forwarding: true };
const UNTAGGED: Membership = Membership { pvid: false, untagged: true, forwarding: true };
const ACCESS: Membership = Membership { pvid: true, untagged: true, forwarding: true };
const HELD: Membership = Membership { pvid: false, untagged: false, forwarding: false };

/// Two hosts, and one between them whose only link between the two is the program.
struct Rig {
    program: Program,
    _link: Link,
    sender: FrameSender,
    capture: FrameCapture,
    ports: [End; 2],
    from: Mac,
    to: Mac,
    straight: bool,
}

fn index(end: &End) -> u32 {
    let text = end.host.ip(["-o", "link", "show", "dev", &end.device]).expect("it is there");
    text.split(':').next().and_then(|index| index.trim().parse().ok()).expect("an index")
}

fn vlans(parts: &[(u16, u16, Membership)]) -> Vlans {
    let mut vlans = Vlans::default();
    parts.iter().for_each(|(first, last, membership)| vlans.add(*first..=*last, *membership));
    vlans
}

impl Rig {
    fn new(straight: bool) -> Self {
        Self::with(straight, |stations, ports| Program::load(stations, ports, Owner::default()))
    }

    /// With a program that is loaded so.
    fn with(straight: bool, load: impl Fn(u32, u32) -> Result<Program> + Sync) -> Self {
        let lab = Lab::new("vlans").expect("a lab");
        let [a, between, b] = ["a", "between", "b"].map(|name| lab.host(name).expect("a host"));
        let options = LinkOptions::default;
        let [one, two] = [&a, &b].map(|host| lab.link(host, &between, options()).expect("a link"));
        let ports = [one.b.clone(), two.b.clone()];
        let (into, out) = (index(&ports[0]), index(&ports[1]));
        let loaded = between.run(|| {
            let program = load(64, 8).expect("it loads");
            let device = program.device(out).expect("it is asked for").expect("it is there");
            let to = Port { flags: PORT_OUT, index: out, max_len: 1514, device, ..Port::default() };
            let flags = if straight { PORT_OUT | PORT_STRAIGHT } else { PORT_OUT };
            let to = Port { flags, peer_key: number(two.a.mac), gso_max_size: 65536, ..to };
            program.set_port(OUT, &to).expect("it is written");
            let port = Port { index: into, flags: PORT_IN, ..Port::default() };
            program.set_port(IN, &port).expect("it is written");
            let link = program.attach(into).expect("there is room");
            (program, link)
        });
        let (program, link) = loaded.expect("a thread in the host");
        let sender = FrameSender::open(&a, &one.a.device).expect("a sender");
        let capture = FrameCapture::open(&b, &two.a.device).expect("a capture");
        let (from, to) = (one.a.mac, two.a.mac);
        Self { program, _link: link, sender, capture, ports, from, to, straight }
    }

    /// Has the bridge look at tags of this protocol, with these VLANs on the two ports.
    fn arrange(&self, protocol: u16, into: &Vlans, out: &Vlans) {
        let program = &self.program;
        for (slot, vlans) in [(IN, into), (OUT, out)] {
            program.set_vlans(slot, vlans).expect("it is written");
        }
        let index = index(&self.ports[0]);
        let mut bucket = InletBucket::default();
        // Not in the first place.
        bucket.inlets[2] = Inlet { index, pvid: into.pvid().unwrap_or(0).into() };
        program.set_inlets(index % constants::INLET_BUCKETS, &bucket).expect("it is written");
        let vlan_protocol = u32::from(protocol.to_be());
        configure(program, &Settings { active: 1, vlan_protocol, ..Settings::default() });
    }

    /// Says that both stations are in these VLANs.
    fn introduce(&self, vlans: &[u16]) {
        for &vlan in vlans {
            for (mac, slot) in [(self.from, IN), (self.to, OUT)] {
                let station = Station { place: u32::from(slot), unsettled: 0 };
                assert!(self.program.set_station(Key { mac, vlan }, station).expect("as above"));
            }
        }
    }

    fn frame(&self, tags: Tags<'_>) -> Vec<u8> {
        let mut frame = [self.to.0, self.from.0].concat();
        for (protocol, contents) in tags {
            frame.extend(protocol.to_be_bytes());
            frame.extend(contents.to_be_bytes());
        }
        frame.extend(OWN.to_be_bytes());
        frame.extend(b"through a bridge of VLANs; padded to sixty bytes");
        frame
    }

    fn counters(&self) -> Counters {
        (&self.program.counts().expect("they are read")).into()
    }

    /// Sends a frame; gives how it arrives, and why it does not.
    fn send(&mut self, tags: Tags<'_>) -> std::result::Result<Vec<u8>, Reason> {
        let before = self.counters();
        self.sender.send(&self.frame(tags)).expect("the device is up");
        let after = self.counters();
        let left = |why: &&Reason| after.kernel(**why) > before.kernel(**why);
        if let Some(why) = Reason::ALL.iter().find(left) {
            return Err(*why);
        }
        let straight = after.straight > before.straight;
        assert!(straight || after.redirected > before.redirected, "{tags:x?} is lost");
        assert_eq!(straight, self.straight, "{tags:x?}");
        loop {
            let frame = self.capture.next(Duration::from_secs(5)).expect("the device is up");
            let frame = frame.expect("it arrives").bytes;
            // The host between has some of its own to send.
            if frame[6..12] == self.from.0 {
                return Ok(frame);
            }
        }
    }

    fn check(
        &mut self,
        name: &str,
        sent: Tags<'_>,
        expected: std::result::Result<Tags<'_>, Reason>,
    ) {
        let arrived = self.send(sent);
        let expected = expected.map(|tags| self.frame(tags));
        assert_eq!(arrived, expected, "{name}: {sent:x?}");
    }
}

/// In both ways to a port.
fn each_way(test: &str, check: impl Fn(&mut Rig)) {
    if lab::testing::root(test) {
        [false, true].into_iter().for_each(|straight| check(&mut Rig::new(straight)));
    }
}

#[test]
fn root_tags_come_and_go_as_the_ports_want_them() {
    each_way("root_tags_come_and_go_as_the_ports_want_them", |rig| {
        rig.introduce(&[1, 10, 70, 4094]);
        let access = vlans(&[(10, 10, ACCESS)]);
        let trunk = vlans(&[(1, 1, ACCESS), (10, 4094, PLAIN)]);
        let none = vlans(&[]);
        for protocol in [Q, AD] {
            let tag = |contents| (protocol, contents);
            rig.arrange(protocol, &access, &access);
            rig.check("access to access", &[], Ok(&[]));
            rig.check("with its own tag", &[tag(10)], Ok(&[]));
            rig.check("with a priority alone", &[tag(0xe000)], Ok(&[]));
            rig.check("with another's tag", &[tag(70)], Err(Reason::NotMember));
            rig.arrange(protocol, &access, &trunk);
            rig.check("access to trunk", &[], Ok(&[tag(10)]));
            rig.check("its tag stays", &[tag(10)], Ok(&[tag(10)]));
            rig.check("its priority stays", &[tag(0xb00a)], Ok(&[tag(0xb00a)]));
            rig.check("a priority gets a VLAN", &[tag(0xb000)], Ok(&[tag(0xb00a)]));
            rig.arrange(protocol, &trunk, &access);
            rig.check("trunk to access", &[tag(0xb00a)], Ok(&[]));
            rig.check("not from the trunk's own VLAN", &[], Err(Reason::NotMember));
            rig.arrange(protocol, &trunk, &trunk);
            rig.check("trunk to trunk", &[tag(70)], Ok(&[tag(70)]));
            rig.check("the last VLAN", &[tag(4094)], Ok(&[tag(4094)]));
            rig.check("the trunk's own VLAN", &[], Ok(&[]));
            rig.arrange(protocol, &vlans(&[(10, 10, PLAIN)]), &trunk);
            rig.check("no PVID", &[], Err(Reason::NotMember));
            rig.check("no PVID and a priority", &[tag(0x2000)], Err(Reason::NotMember));
            rig.check("no PVID and a tag", &[tag(10)], Ok(&[tag(10)]));
            rig.arrange(protocol, &access, &none);
            rig.check("to a port in no VLAN", &[], Err(Reason::NotMember));
            rig.arrange(protocol, &none, &trunk);
            rig.check("from a port in no VLAN", &[tag(10)], Err(Reason::NotMember));
        }
    });
}

#[test]
fn root_a_vlan_that_does_not_forward_is_the_kernels() {
    each_way("root_a_vlan_that_does_not_forward_is_the_kernels", |rig| {
        rig.introduce(&[10, 20]);
        let both = vlans(&[(10, 10, ACCESS), (20, 20, PLAIN)]);
        let one = vlans(&[(10, 10, Membership { forwarding: false, ..ACCESS }), (20, 20, PLAIN)]);
        for (into, out) in [(&one, &both), (&both, &one)] {
            rig.arrange(Q, into, out);
            rig.check("held", &[], Err(Reason::NotMember));
            rig.check("held, with its tag", &[(Q, 10)], Err(Reason::NotMember));
            rig.check("the other", &[(Q, 20)], Ok(&[(Q, 20)]));
        }
        rig.arrange(Q, &both, &vlans(&[(10, 10, UNTAGGED), (20, 20, HELD)]));
        rig.check("the first", &[], Ok(&[]));
        rig.check("the second", &[(Q, 20)], Err(Reason::NotMember));
    });
}

fn or_left(taken: bool, tags: Tags<'_>) -> std::result::Result<Tags<'_>, Reason> {
    if taken { Ok(tags) } else { Err(Reason::Vlan) }
}

#[test]
fn root_a_tag_of_the_other_protocol_is_a_part_of_the_frame() {
    each_way("root_a_tag_of_the_other_protocol_is_a_part_of_the_frame", |rig| {
        rig.introduce(&[10, 20]);
        let (access, trunk) = (vlans(&[(10, 10, ACCESS)]), vlans(&[(10, 20, PLAIN)]));
        // By a queue others look at it, who would not find their way in it.
        let straight = rig.straight;
        for (ours, other) in [(Q, AD), (AD, Q)] {
            rig.arrange(ours, &access, &access);
            rig.check(
                "between ports that it is nothing to",
                &[(other, 20)],
                or_left(straight, &[(other, 20)]),
            );
            rig.check("behind ours", &[(ours, 10), (other, 5)], or_left(straight, &[(other, 5)]));
            rig.check(
                "before ours",
                &[(other, 20), (ours, 20)],
                or_left(straight, &[(other, 20), (ours, 20)]),
            );
            rig.arrange(ours, &access, &trunk);
            rig.check(
                "into a trunk",
                &[(other, 0x6014)],
                or_left(straight, &[(ours, 10), (other, 0x6014)]),
            );
            rig.check(
                "twice ours",
                &[(ours, 10), (ours, 7)],
                or_left(straight, &[(ours, 10), (ours, 7)]),
            );
            let sent = [(ours, 0x6000), (other, 7)];
            rig.check("behind a priority", &sent, or_left(straight, &[(ours, 0x600a), (other, 7)]));
            rig.arrange(ours, &trunk, &access);
            rig.check(
                "a second tag of ours",
                &[(ours, 10), (ours, 7)],
                or_left(straight, &[(ours, 7)]),
            );
        }
        // What netfilter would see behind a tag is not looked for.
        rig.arrange(Q, &access, &access);
        let vlan_protocol = u32::from(Q.to_be());
        let kernel_ethertypes = constants::KERNEL_ARP;
        let settings =
            Settings { active: 1, vlan_protocol, kernel_ethertypes, ..Settings::default() };
        configure(&rig.program, &settings);
        rig.check("plain", &[], Ok(&[]));
        rig.check("nested", &[(Q, 10), (Q, 7)], Err(Reason::Protocol));
        rig.check("of the other protocol", &[(AD, 10)], Err(Reason::Protocol));
    });
}

#[test]
fn root_a_station_is_known_by_its_vlan_too() {
    each_way("root_a_station_is_known_by_its_vlan_too", |rig| {
        let trunk = vlans(&[(10, 10, ACCESS), (20, 20, PLAIN)]);
        rig.introduce(&[10]);
        rig.arrange(Q, &trunk, &trunk);
        rig.check("known", &[], Ok(&[]));
        rig.check("unknown there", &[(Q, 20)], Err(Reason::UnknownSource));
        let unsettled = |rig: &Rig, vlan| {
            rig.program.unsettled(Key { mac: rig.from, vlan }).expect("it is read")
        };
        // In the other VLAN it is elsewhere, and shows up here.
        let elsewhere = Station { place: OUT.into(), unsettled: 0 };
        assert!(
            rig.program.set_station(Key { mac: rig.from, vlan: 20 }, elsewhere).expect("edited")
        );
        rig.check("moved there", &[(Q, 20)], Err(Reason::Moved));
        assert_eq!((unsettled(rig, 10), unsettled(rig, 20)), (Some(0), Some(1)));
        let seen = std::cell::RefCell::new(Vec::new());
        rig.program.moved(&seen).expect("a ring").consume().expect("it is read");
        assert_eq!(seen.take(), [Key { mac: rig.from, vlan: 20 }]);
        rig.check("still known here", &[], Ok(&[]));
        // Without VLANs it is yet another one.
        configure(&rig.program, &Settings { active: 1, ..Settings::default() });
        rig.check("no VLANs", &[], Err(Reason::UnknownSource));
        rig.check("no VLANs, and a tag", &[(Q, 10)], Err(Reason::Vlan));
    });
}

#[test]
fn root_tags_are_the_kernels_where_nobody_can_see_whether_there_is_a_vlan_device() {
    let test = "root_tags_are_the_kernels_where_nobody_can_see_whether_there_is_a_vlan_device";
    if !lab::testing::root(test) {
        return;
    }
    let blind = |stations, ports| {
        let loaded = Program::try_load(stations, ports, Owner::default(), false);
        loaded.map_err(|error| Error::new(ErrorKind::Unsupported, error.to_string()))
    };
    let mut rig = Rig::with(true, blind);
    rig.introduce(&[10]);
    let (access, trunk) = (vlans(&[(10, 10, ACCESS)]), vlans(&[(10, 10, PLAIN)]));
    rig.arrange(Q, &access, &trunk);
    rig.check("without a tag", &[], Ok(&[(Q, 10)]));
    rig.check("with its tag", &[(Q, 10)], Err(Reason::Vlan));
    rig.check("with a priority", &[(Q, 0x2000)], Err(Reason::Vlan));
}

#[test]
fn root_a_port_that_nobody_has_told_of_is_the_kernels() {
    each_way("root_a_port_that_nobody_has_told_of_is_the_kernels", |rig| {
        rig.introduce(&[10]);
        let access = vlans(&[(10, 10, ACCESS)]);
        rig.arrange(Q, &access, &access);
        let home = index(&rig.ports[0]) % constants::INLET_BUCKETS;
        rig.program.set_inlets(home, &InletBucket::default()).expect("it is written");
        rig.check("nowhere", &[], Err(Reason::PortIn));
        rig.check("its tag says where", &[(Q, 10)], Ok(&[]));
    });
}

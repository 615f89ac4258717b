//! Asking this host. Nothing is changed and nothing stays.

use std::path::Path;

use frames::{AreaOptions, FrameArea, FramePool, PoolOptions};
use kit::netlink::{self, Socket, Xdp};
use lanes::LaneMap;
use netlink_sys::protocols::NETLINK_GENERIC;
use xsk::{Device, Umem};

use super::{Answers, BridgeAnswer, Channels, DeviceAnswer, PortAnswer, Said, XskAnswer, cgroup};
use crate::tree::Tree;

/// Netlink's family `ethtool`, and its number. Anybody may ask.
struct Ethtool {
    socket: Socket,
    family: u16,
}

/// Asks all there is to ask about these devices and this process; what fails is noted in the tree.
pub(crate) fn ask(tree: &Tree, devices: &[String], lanes: &LaneMap, pid: &str) -> Answers {
    let mut ethtool = Ethtool::new()
        .inspect_err(|error| tree.note(format!("cannot ask for devices' channels: {error}")))
        .ok();
    let mut answers = Answers {
        bridges: bridges(tree, devices),
        xsk: sockets(tree),
        cpu_limit: cgroup::limit(Path::new("/"), pid),
        ..Answers::default()
    };
    for name in devices {
        // It may have gone meanwhile, or be another namespace's, where `/sys` is.
        if let Ok(device) = Device::find(name) {
            let answer = device_answer(tree, &device, lanes, ethtool.as_mut());
            answers.devices.insert(name.clone(), answer);
        }
    }
    answers
}

impl Ethtool {
    fn new() -> std::io::Result<Self> {
        let mut socket = Socket::open(NETLINK_GENERIC)?;
        let family = socket.family("ethtool")?;
        Ok(Self { socket, family })
    }

    /// None if the device's driver has no answer.
    fn channels(&mut self, device: &Device) -> Option<Channels> {
        let found = netlink::Channels::of(&mut self.socket, self.family, device.index()).ok()?;
        let netlink::Channels { receive, most } = found;
        (receive > 0).then_some(Channels { receive, most })
    }
}

fn device_answer(
    tree: &Tree,
    device: &Device,
    lanes: &LaneMap,
    ethtool: Option<&mut Ethtool>,
) -> DeviceAnswer {
    // What goes away while it is asked about was not there.
    let note = |what: String| {
        if Device::find(device.name()).is_ok() {
            tree.note(what);
        }
    };
    let xdp = Xdp::of(device.index())
        .inspect_err(|error| note(format!("{device}: cannot ask for its XDP: {error}")))
        .ok();
    let mut answer = DeviceAnswer {
        kind: device.kind().ok().flatten(),
        channels: ethtool.and_then(|ethtool| ethtool.channels(device)),
        xdp_features: xdp.as_ref().map(|xdp| xdp.features),
        xdp_programs: xdp.map_or(0, |xdp| xdp.programs.len()),
        ..DeviceAnswer::default()
    };
    // Once more, as a device above it may have gone meanwhile.
    let inspect = || steer::inspect(device, lanes);
    match inspect().or_else(|_| inspect()) {
        Ok(plan) => {
            let obstacle = |obstacle: &steer::Obstacle| Said {
                remedy: obstacle.remedy(device.name()),
                ..said(obstacle.id(), obstacle)
            };
            answer.against_steering = plan.obstacles.iter().map(obstacle).collect();
            answer.steering_notes = plan.notes.iter().map(|note| said(note.id(), note)).collect();
        }
        Err(error) => note(format!("what stands against steering: {error}")),
    }
    answer
}

/// Asks about bridges only where there are some: asking has the kernel load its netlink for
/// netfilter.
fn bridges(tree: &Tree, devices: &[String]) -> Vec<BridgeAnswer> {
    let is_bridge = |name: &&String| tree.exists(&format!("sys/class/net/{name}/bridge"));
    let answers = devices.iter().filter(is_bridge).filter_map(|name| {
        let found = bridge::inspect(name).inspect_err(|error| {
            if Device::find(name).is_ok() {
                tree.note(format!("what stands against the fast path of {name}: {error}"));
            }
        });
        Some(bridge_answer(name.clone(), &found.ok()?))
    });
    answers.collect()
}

fn bridge_answer(name: String, found: &bridge::Inspection) -> BridgeAnswer {
    let all = |list: &[bridge::Obstacle]| list.iter().map(|one| said(one.id(), one)).collect();
    let port = |port: &bridge::PortPlan| PortAnswer {
        name: port.name.clone(),
        to: port.send.name().into(),
        against_from: all(&port.receive),
        against_better_to: all(&port.limits),
    };
    BridgeAnswer {
        name,
        can_forward: found.plan.can_forward(),
        accelerated: found.accelerated.is_some(),
        obstacles: all(&found.plan.obstacles),
        remarks: found.plan.remarks(),
        ports: found.plan.ports.iter().map(port).collect(),
    }
}

/// Makes a socket over as much memory as cachelane uses unless told otherwise, binds it to nothing,
/// and lets go of it.
fn sockets(tree: &Tree) -> Option<XskAnswer> {
    let pool = FrameArea::new(&AreaOptions::default())
        .and_then(|area| FramePool::new(area, &PoolOptions::default()))
        .inspect_err(|error| tree.note(format!("whether AF_XDP works: {error}")))
        .ok()?;
    match Umem::new(pool) {
        Ok(_) => Some(XskAnswer::Yes),
        Err(error) => match error.kind() {
            xsk::ErrorKind::NoXdp => Some(XskAnswer::None(error.to_string())),
            xsk::ErrorKind::MemlockLimit => Some(XskAnswer::Memlock(error.to_string())),
            _ => {
                tree.note(format!("whether AF_XDP works: {error}"));
                None
            }
        },
    }
}

fn said(id: &str, text: impl ToString) -> Said {
    Said { id: id.into(), text: text.to_string(), remedy: None }
}

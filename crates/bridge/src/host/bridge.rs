//! What is used of a bridge's own settings.

use std::time::Duration;

use netlink_packet_route::link::{BridgeBooleanOptionFlags, InfoBridge, VlanProtocol as Tags};

use super::link::{self, Link};
use crate::state::{Bridge, Calls, VlanProtocol};

/// The bridge's own part. `host` is what `br_netfilter` does for all bridges.
pub(super) fn bridge_of(link: Link, host: Option<Calls>) -> Bridge {
    let mut bridge = Bridge {
        index: link.index,
        name: link.name,
        up: link.up,
        promiscuous: link.promiscuity > 0,
        link_local_learning: true,
        ..Bridge::default()
    };
    let (mut own, mut protocol, mut filtering) = (Calls::default(), VlanProtocol::Q, false);
    for setting in link.bridge {
        match setting {
            InfoBridge::VlanFiltering(on) => filtering = on,
            InfoBridge::VlanProtocol(Tags::Ieee8021Ad) => protocol = VlanProtocol::Ad,
            InfoBridge::VlanStatsEnabled(on) => bridge.vlan_stats = on,
            InfoBridge::StpState(state) => bridge.stp = link::stp_on(state),
            InfoBridge::AgeingTime(time) => bridge.ageing = clock(time),
            InfoBridge::ForwardDelay(time) => bridge.forward_delay = clock(time),
            InfoBridge::GroupFwdMask(mask) => bridge.group_forward = mask,
            InfoBridge::MultiBoolOpt(options) => {
                let off = BridgeBooleanOptionFlags::NoLinkLocalLearn;
                bridge.link_local_learning = !options.value.contains(off);
                bridge.mst = options.value.contains(BridgeBooleanOptionFlags::MstEnable);
            }
            InfoBridge::NfCallIpTables(on) => own.iptables = on,
            InfoBridge::NfCallIp6Tables(on) => own.ip6tables = on,
            InfoBridge::NfCallArpTables(on) => own.arptables = on,
            _ => {}
        }
    }
    bridge.vlans = filtering.then_some(protocol);
    if let Some(host) = host {
        bridge.calls = Calls {
            iptables: own.iptables || host.iptables,
            ip6tables: own.ip6tables || host.ip6tables,
            arptables: own.arptables || host.arptables,
        };
    }
    bridge
}

/// A time as the kernel tells it to programs: in hundredths of a second (`USER_HZ`).
fn clock(ticks: u32) -> Duration {
    Duration::from_millis(u64::from(ticks) * 10)
}

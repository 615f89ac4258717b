//! Netfilter hooks that can see bridged packets.
//!
//! The kernel lists all hooks since 5.14, if it is built to. Elsewhere the base chains and flow
//! tables of nft are listed, which `ebtables` makes today too, and the modules of the older
//! `ebtables` count as hooks by being loaded: whether they are in use is not shown.

use std::io;

use kit::netlink::{
    Socket, attributes, big_endian, find, find_after, is, message, string, string_attribute,
};
use netlink_packet_core::DefaultNla;
use netlink_sys::protocols::NETLINK_NETFILTER;
use rustix::io::Errno;

use super::proc;
use crate::state::{DeviceHook, Netfilter};

const HEADER: usize = 4; // struct nfgenmsg

pub(super) const NFPROTO_INET: u8 = 1;
pub(super) const NFPROTO_NETDEV: u8 = 5;
pub(super) const NFPROTO_BRIDGE: u8 = 7;
const NFPROTO_UNSPEC: u8 = 0;

/// From pre- to post-routing. `ebtables -t broute` hooks in before the first, not beside it.
const NF_BR_HOOKS: std::ops::Range<u32> = 0..5;
const NF_INET_INGRESS: u32 = 5;
const NF_NETDEV_INGRESS: u32 = 0;
const NF_NETDEV_EGRESS: u32 = 1;

const NFNL_MSG_HOOK_GET: u16 = 12 << 8;
const NFNLA_HOOK_HOOKNUM: u16 = 1;
const NFNLA_HOOK_DEV: u16 = 3;
const NFNLA_HOOK_FUNCTION_NAME: u16 = 4;
const NFNLA_HOOK_MODULE_NAME: u16 = 5;
const NFNLA_HOOK_CHAIN_INFO: u16 = 6;
const NFNLA_HOOK_INFO_DESC: u16 = 1;
const NFNLA_CHAIN_TABLE: u16 = 1;
const NFNLA_CHAIN_NAME: u16 = 3;

pub(super) const NFNL_SUBSYS_NFTABLES: u16 = 10 << 8;
const NFT_MSG_GETCHAIN: u16 = NFNL_SUBSYS_NFTABLES | 4;
const NFT_MSG_GETFLOWTABLE: u16 = NFNL_SUBSYS_NFTABLES | 23;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_HOOK_DEVS: u16 = 4;
const NFTA_FLOWTABLE_TABLE: u16 = 1;
const NFTA_FLOWTABLE_NAME: u16 = 2;
const NFTA_FLOWTABLE_HOOK: u16 = 3;
const NFTA_FLOWTABLE_HOOK_DEVS: u16 = 3;
const NFTA_DEVICE_PREFIX: u16 = 2;

/// Modules that hook into the bridge family without nft.
const BRIDGE_MODULES: [&str; 4] =
    ["ebtable_broute", "ebtable_nat", "ebtable_filter", "nf_conntrack_bridge"];

/// Lists the hooks that can see bridged packets.
#[derive(Debug)]
pub(super) struct Hooks {
    socket: Socket,
    /// Whether the kernel lists them itself. Asked once: where it does not, it would look for a
    /// module to load each time.
    listed: bool,
}

impl Hooks {
    /// None if the kernel has no netfilter.
    pub(super) fn open() -> io::Result<Option<Self>> {
        let mut socket = match Socket::open(NETLINK_NETFILTER) {
            Err(error) if is(&error, Errno::PROTONOSUPPORT) => return Ok(None),
            socket => socket?,
        };
        let listed = match hook_names(&mut socket, NFPROTO_BRIDGE, NF_BR_HOOKS.start, None) {
            Err(error) if is_absent(&error) => false,
            names => names.map(|_| true)?,
        };
        Ok(Some(Self { socket, listed }))
    }

    /// What is hooked into the bridge family, and into these devices.
    pub(super) fn read(&mut self, devices: &[&str]) -> io::Result<Netfilter> {
        let socket = &mut self.socket;
        let mut found = if self.listed { hooks(socket, devices)? } else { chains(socket)? };
        for hooks in [&mut found.ingress, &mut found.egress] {
            hooks.retain(|hook| devices.iter().any(|device| hook.is_on(device)));
            hooks.sort_by(|a, b| (&a.device, &a.what).cmp(&(&b.device, &b.what)));
            hooks.dedup();
        }
        found.bridge.sort();
        found.bridge.dedup();
        Ok(found)
    }
}

/// The kernel's answers where a part of netfilter is not there.
fn is_absent(error: &io::Error) -> bool {
    let absent = [Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::INVAL, Errno::NOENT];
    absent.iter().any(|errno| is(error, *errno))
}

/// The hooks, as the kernel lists them.
fn hooks(socket: &mut Socket, devices: &[&str]) -> io::Result<Netfilter> {
    let mut found = Netfilter::default();
    for hook in NF_BR_HOOKS {
        found.bridge.extend(hook_names(socket, NFPROTO_BRIDGE, hook, None)?);
    }
    for device in devices {
        let on = |what| DeviceHook { device: (*device).to_owned(), prefix: false, what };
        found.ingress.extend(device_hooks(socket, NF_NETDEV_INGRESS, device)?.into_iter().map(on));
        found.egress.extend(device_hooks(socket, NF_NETDEV_EGRESS, device)?.into_iter().map(on));
    }
    Ok(found)
}

/// None if the device has just gone, or where the kernel is built without hooks on devices.
fn device_hooks(socket: &mut Socket, hook: u32, device: &str) -> io::Result<Vec<String>> {
    match hook_names(socket, NFPROTO_NETDEV, hook, Some(device)) {
        Err(error) if is_absent(&error) || is(&error, Errno::NODEV) => Ok(Vec::new()),
        names => names,
    }
}

fn hook_names(
    socket: &mut Socket,
    family: u8,
    hook: u32,
    device: Option<&str>,
) -> io::Result<Vec<String>> {
    let number = DefaultNla::new(NFNLA_HOOK_HOOKNUM, hook.to_be_bytes().to_vec());
    let device = device.map(|device| string_attribute(NFNLA_HOOK_DEV, device));
    let attributes: Vec<_> = [Some(number), device].into_iter().flatten().collect();
    let request = message(&[family, 0, 0, 0], &attributes);
    socket.dump(NFNL_MSG_HOOK_GET, &request, |message| Ok(hook_name(message)))
}

/// What one hook is called; none for those of `br_netfilter`, whose settings tell what it does.
fn hook_name(message: &[u8]) -> Option<String> {
    let text = |kind| find_after(HEADER, message, kind).map(string).unwrap_or_default();
    let (function, module) = (text(NFNLA_HOOK_FUNCTION_NAME), text(NFNLA_HOOK_MODULE_NAME));
    let info = find_after(HEADER, message, NFNLA_HOOK_CHAIN_INFO);
    let chain = info.and_then(|info| find(info, NFNLA_HOOK_INFO_DESC)).and_then(|chain| {
        let table = string(find(chain, NFNLA_CHAIN_TABLE)?);
        Some(format!("table {table}, chain {}", string(find(chain, NFNLA_CHAIN_NAME)?)))
    });
    match chain {
        _ if module == "br_netfilter" || function.starts_with("br_nf_") => None,
        Some(chain) => Some(format!("nft {chain}")),
        None if function.is_empty() => Some("a hook without a name".to_owned()),
        None if module.is_empty() => Some(function),
        None => Some(format!("{function} of {module}")),
    }
}

/// What nft and the modules tell of.
fn chains(socket: &mut Socket) -> io::Result<Netfilter> {
    let mut found = Netfilter::default();
    let chains = match list(socket, NFT_MSG_GETCHAIN, chain) {
        Err(error) if is_absent(&error) => None,
        chains => Some(chains?),
    };
    // A kernel may be without nft, and an older one without flow tables.
    let tables = match chains.as_ref().map(|_| list(socket, NFT_MSG_GETFLOWTABLE, flow_table)) {
        Some(Err(error)) if is_absent(&error) => None,
        tables => tables.transpose()?,
    };
    for hooked in chains.into_iter().chain(tables).flatten() {
        found.add(hooked);
    }
    let modules = proc::modules()?;
    let hooking = BRIDGE_MODULES.iter().filter(|name| modules.iter().any(|module| module == *name));
    found.bridge.extend(hooking.map(|name| format!("module {name}")));
    Ok(found)
}

fn list(
    socket: &mut Socket,
    kind: u16,
    parse: impl Fn(&[u8]) -> Option<Hooked>,
) -> io::Result<Vec<Hooked>> {
    let request = message(&[NFPROTO_UNSPEC, 0, 0, 0], &[]);
    socket.dump(kind, &request, |message| Ok(parse(message)))
}

/// A base chain or a flow table that may matter.
struct Hooked {
    what: String,
    place: Place,
    /// Names, or the starts of names.
    devices: Vec<(String, bool)>,
}

enum Place {
    Bridge,
    Ingress,
    Egress,
}

impl Netfilter {
    fn add(&mut self, hooked: Hooked) {
        let Hooked { what, place, devices } = hooked;
        let hooks = match place {
            Place::Bridge => return self.bridge.push(what),
            Place::Ingress => &mut self.ingress,
            Place::Egress => &mut self.egress,
        };
        let on = |(device, prefix)| DeviceHook { device, prefix, what: what.clone() };
        hooks.extend(devices.into_iter().map(on));
    }
}

fn chain(message: &[u8]) -> Option<Hooked> {
    // A chain without a hook is there to be jumped to.
    let hook = find_after(HEADER, message, NFTA_CHAIN_HOOK)?;
    let text = |kind| find_after(HEADER, message, kind).map(string).unwrap_or_default();
    let (table, name) = (text(NFTA_CHAIN_TABLE), text(NFTA_CHAIN_NAME));
    let number = find(hook, NFTA_HOOK_HOOKNUM).and_then(big_endian)?;
    let (family, place) = match (*message.first()?, number) {
        (NFPROTO_BRIDGE, _) => ("bridge", Place::Bridge),
        (NFPROTO_NETDEV, NF_NETDEV_EGRESS) => ("netdev", Place::Egress),
        (NFPROTO_NETDEV, _) => ("netdev", Place::Ingress),
        (NFPROTO_INET, NF_INET_INGRESS) => ("inet", Place::Ingress),
        _ => return None,
    };
    let what = format!("nft table {family} {table}, chain {name}");
    Some(Hooked { what, place, devices: devices(hook, NFTA_HOOK_DEVS) })
}

fn flow_table(message: &[u8]) -> Option<Hooked> {
    let table = find_after(HEADER, message, NFTA_FLOWTABLE_TABLE)?;
    let name = find_after(HEADER, message, NFTA_FLOWTABLE_NAME)?;
    let hook = find_after(HEADER, message, NFTA_FLOWTABLE_HOOK)?;
    let what = format!("nft table {}, flowtable {}", string(table), string(name));
    let devices = devices(hook, NFTA_FLOWTABLE_HOOK_DEVS);
    Some(Hooked { what, place: Place::Ingress, devices })
}

/// The devices of a hook. A name without its NUL is the start of names.
fn devices(hook: &[u8], list: u16) -> Vec<(String, bool)> {
    let named = |kind: u16, value: &[u8]| {
        (string(value), kind == NFTA_DEVICE_PREFIX || value.last() != Some(&0))
    };
    let mut found = Vec::new();
    for (kind, value) in attributes(hook) {
        if kind == list {
            found.extend(attributes(value).map(|(kind, value)| named(kind, value)));
        } else if kind == NFTA_HOOK_DEV {
            found.push(named(0, value));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use kit::netlink::nested_attribute;

    fn hook(function: &str, more: &[DefaultNla]) -> Option<String> {
        let function = [string_attribute(NFNLA_HOOK_FUNCTION_NAME, function)];
        hook_name(&message(&[NFPROTO_BRIDGE, 0, 0, 0], &[&function, more].concat()))
    }

    #[test]
    fn listed_hooks_have_names_and_those_of_br_netfilter_do_not_count() {
        let module = |name| string_attribute(NFNLA_HOOK_MODULE_NAME, name);
        let chain = nested_attribute(
            NFNLA_HOOK_INFO_DESC,
            &[string_attribute(NFNLA_CHAIN_TABLE, "t"), string_attribute(NFNLA_CHAIN_NAME, "c")],
        );
        let chain = nested_attribute(NFNLA_HOOK_CHAIN_INFO, &[chain]);
        let cases: [(Option<String>, Option<&str>); 6] = [
            (hook("br_nf_forward", &[]), None),
            (hook("br_nf_pre_routing", &[module("br_netfilter")]), None),
            (hook("ebt_out_hook", &[module("ebtable_nat")]), Some("ebt_out_hook of ebtable_nat")),
            (
                hook("nft_do_chain_bridge", &[module("nf_tables"), chain]),
                Some("nft table t, chain c"),
            ),
            (hook("somebody_s", &[]), Some("somebody_s")),
            // A kernel without the names of its functions.
            (hook("", &[]), Some("a hook without a name")),
        ];
        for (named, expected) in cases {
            assert_eq!(named.as_deref(), expected);
        }
    }

    #[test]
    fn hooks_on_the_starts_of_names_are_told_from_those_on_names() {
        let name = |kind, name: &[u8]| DefaultNla::new(kind, name.to_vec());
        let list = [name(1, b"p0\0"), name(NFTA_DEVICE_PREFIX, b"veth\0"), name(1, b"tap")];
        let hook = message(&[], &[nested_attribute(NFTA_HOOK_DEVS, &list)]);
        let expected = [("p0", false), ("veth", true), ("tap", true)];
        let expected = expected.map(|(name, prefix)| (name.to_owned(), prefix));
        assert_eq!(devices(&hook, NFTA_HOOK_DEVS), expected);
        let single = message(&[], &[string_attribute(NFTA_HOOK_DEV, "p0")]);
        assert_eq!(devices(&single, NFTA_HOOK_DEVS), [("p0".to_owned(), false)]);
    }

    #[test]
    fn flow_tables_are_on_the_ingress_of_their_devices() {
        let devices = nested_attribute(NFTA_FLOWTABLE_HOOK_DEVS, &[string_attribute(1, "p0")]);
        let attributes = [
            string_attribute(NFTA_FLOWTABLE_TABLE, "t"),
            string_attribute(NFTA_FLOWTABLE_NAME, "f"),
            nested_attribute(NFTA_FLOWTABLE_HOOK, &[devices]),
        ];
        let mut found = Netfilter::default();
        let table = flow_table(&message(&[NFPROTO_INET, 0, 0, 0], &attributes));
        found.add(table.expect("a flow table"));
        let what = "nft table t, flowtable f".to_owned();
        let ingress = vec![DeviceHook { device: "p0".to_owned(), prefix: false, what }];
        assert_eq!(found, Netfilter { ingress, ..Netfilter::default() });
    }
}

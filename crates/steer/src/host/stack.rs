//! The devices above and below a device, and what of them makes steering it wrong.
//!
//! The kernel knows them as a graph: a bond is above its members, a VLAN device above the one that
//! it is on. [`read`] takes what sysfs says of it, within the caller's network namespace; the
//! decisions are pure functions over that, as no machine has all kinds of devices.

use xsk::Device;

use super::Obstacle;
use super::sysfs::Sysfs;
use crate::Result;

/// One of the devices, as the kernel reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Layer {
    pub(super) name: String,
    /// What kind it is, if it is one that software makes.
    pub(super) kind: Option<String>,
    /// A bridge that keeps VLANs apart.
    pub(super) filters_vlans: bool,
    /// The devices right above it.
    pub(super) above: Vec<String>,
    /// The devices right below it.
    pub(super) below: Vec<String>,
}

impl Layer {
    /// Whether packets of several devices come as packets of this one, which has no queues of its
    /// own for them.
    fn joins(&self) -> Option<&str> {
        match self.kind.as_deref() {
            Some(kind @ ("bond" | "team" | "hsr")) => Some(kind),
            Some(_) => None,
            // A device of a driver has others below it where these are its fast way: a virtual
            // function below netvsc (Hyper-V) or below a failover device (virtio_net).
            None if !self.below.is_empty() => Some("failover device"),
            None => None,
        }
    }

    /// Whether it tells packets apart by their VLAN tags.
    fn needs_tags(&self) -> bool {
        self.filters_vlans || matches!(self.kind.as_deref(), Some("vlan" | "openvswitch"))
    }
}

/// The first of these, a device and those above it, that receives for several.
pub(super) fn group_of(layers: &[Layer]) -> Option<Obstacle> {
    layers.iter().find_map(|layer| {
        let kind = layer.joins()?.to_owned();
        Some(Obstacle::Group { group: layer.name.clone(), kind, members: layer.below.clone() })
    })
}

/// Those of the devices above the first one that need packets' VLAN tags.
pub(super) fn need_tags(layers: &[Layer]) -> Vec<String> {
    let above = layers.iter().skip(1);
    above.filter(|layer| layer.needs_tags()).map(|layer| layer.name.clone()).collect()
}

/// A device and all that are above it, the nearest first, as the kernel has them now.
pub(super) fn read(device: &Device, sysfs: &Sysfs) -> Result<Vec<Layer>> {
    upwards(device.name(), |name| layer(name, sysfs))
}

/// The device of this name and all above it, the nearest first, each once.
fn upwards(device: &str, layer: impl Fn(&str) -> Result<Layer>) -> Result<Vec<Layer>> {
    let mut layers = vec![layer(device)?];
    let mut at = 0;
    while at < layers.len() {
        for name in layers[at].above.clone() {
            if !layers.iter().any(|known| known.name == name) {
                layers.push(layer(&name)?);
            }
        }
        at += 1;
    }
    Ok(layers)
}

fn layer(name: &str, sysfs: &Sysfs) -> Result<Layer> {
    let kind = Device::find(name)?.kind()?;
    let folder = format!("class/net/{name}");
    let entries = sysfs.list(&format!("{folder}/"))?;
    let named = |prefix: &str| -> Vec<String> {
        entries.iter().filter_map(|entry| entry.strip_prefix(prefix)).map(str::to_owned).collect()
    };
    let filtering = sysfs.read(&format!("{folder}/bridge/vlan_filtering"))?;
    Ok(Layer {
        name: name.to_owned(),
        kind,
        filters_vlans: filtering.is_some_and(|text| text.trim() != "0"),
        above: named("upper_"),
        below: named("lower_"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `NAME[:KIND]` on each line, below the devices after `<`. A kind with `+` keeps VLANs apart.
    fn stack(text: &str) -> Vec<Layer> {
        let mut layers: Vec<Layer> = Vec::new();
        for line in text.lines().map(str::trim) {
            let (device, above) = line.split_once('<').unwrap_or((line, ""));
            let (name, kind) = device.trim().split_once(':').unwrap_or((device.trim(), ""));
            layers.push(Layer {
                name: name.into(),
                kind: Some(kind.trim_end_matches('+').to_owned()).filter(|kind| !kind.is_empty()),
                filters_vlans: kind.ends_with('+'),
                above: above.split_whitespace().map(str::to_owned).collect(),
                below: Vec::new(),
            });
        }
        for at in 0..layers.len() {
            let name = layers[at].name.clone();
            let below = layers.iter().filter(|layer| layer.above.contains(&name));
            layers[at].below = below.map(|layer| layer.name.clone()).collect();
        }
        layers
    }

    /// The device of this name and those above it.
    fn from(device: &str, layers: &[Layer]) -> Result<Vec<Layer>> {
        let find = |name: &str| layers.iter().find(|layer| layer.name == name).cloned();
        upwards(device, |name| find(name).ok_or_else(|| crate::Error::invalid(name)))
    }

    #[test]
    fn what_receives_for_several_is_found_from_itself_and_from_its_members() {
        let bond = "eth0 < bond0\n eth1 < bond0\n bond0:bond";
        let deep = "eth0 < bond0\n eth1 < bond0\n bond0:bond < br0 bond0.7\n br0:bridge\n \
                    bond0.7:vlan";
        let vlan_in_a_team = "eth0 < eth0.5\n eth0.5:vlan < team0\n team0:team";
        let netvsc = "vf < eth0\n eth0";
        for (text, device, expected) in [
            ("eth0", "eth0", None),
            ("eth0 < br0 mv0\n br0:bridge\n mv0:macvlan", "eth0", None),
            ("eth0 < red\n red:vrf", "eth0", None),
            (bond, "bond0", Some(("bond0", "bond"))),
            (bond, "eth0", Some(("bond0", "bond"))),
            (deep, "eth1", Some(("bond0", "bond"))),
            (deep, "bond0", Some(("bond0", "bond"))),
            (vlan_in_a_team, "eth0", Some(("team0", "team"))),
            ("eth0 < prp0\n prp0:hsr", "eth0", Some(("prp0", "hsr"))),
            (netvsc, "eth0", Some(("eth0", "failover device"))),
            (netvsc, "vf", Some(("eth0", "failover device"))),
        ] {
            let found = group_of(&from(device, &stack(text)).expect("all are there"));
            let found = found.as_ref().map(|found| match found {
                Obstacle::Group { group, kind, .. } => (group.as_str(), kind.as_str()),
                other => panic!("{other}"),
            });
            assert_eq!(found, expected, "{device} of {text}");
        }
        let group = group_of(&from("eth0", &stack(bond)).expect("all are there"));
        let members = ["eth0", "eth1"].map(str::to_owned).to_vec();
        let (bond, kind) = ("bond0".into(), "bond".into());
        assert_eq!(group, Some(Obstacle::Group { group: bond, kind, members }));
    }

    #[test]
    fn what_needs_vlan_tags_is_found_however_far_above_it_is() {
        for (text, expected) in [
            ("eth0", &[][..]),
            ("eth0 < eth0.7 mv0\n eth0.7:vlan\n mv0:macvlan", &["eth0.7"]),
            ("eth0 < bond0\n bond0:bond < bond0.7\n bond0.7:vlan", &["bond0.7"]),
            ("eth0 < br0\n br0:bridge", &[]),
            ("eth0 < br0\n br0:bridge+", &["br0"]),
            ("eth0 < br0\n br0:bridge < br0.9\n br0.9:vlan", &["br0.9"]),
            ("eth0 < ovs-system\n ovs-system:openvswitch", &["ovs-system"]),
            (
                "eth0 < br0 eth0.1\n br0:bridge+ < top\n eth0.1:vlan < top\n top:bridge",
                &["br0", "eth0.1"],
            ),
        ] {
            let layers = from("eth0", &stack(text)).expect("all are there");
            assert_eq!(need_tags(&layers), expected, "{text}");
        }
    }

    #[test]
    fn root_the_kernel_says_what_is_above_and_below() {
        let test = "root_the_kernel_says_what_is_above_and_below";
        if !lab::testing::root(test) {
            return;
        }
        let lab = lab::Lab::new("ststack").expect("a lab");
        let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
        let link = lab.link(&a, &b, lab::LinkOptions::default()).expect("a link");
        let device = link.a.device;
        for line in [
            "link add br0 type bridge".to_owned(),
            format!("link set {device} master br0"),
            "link add mv0 link br0 type macvlan".to_owned(),
            "link add mv1 link br0 type macvlan".to_owned(),
        ] {
            a.ip(line.split(' ').collect::<Vec<_>>()).expect("ip");
        }
        let port = device.clone();
        let layers = a.run(move || {
            let device = Device::find(&port).expect("a port");
            read(&device, &Sysfs::new(&device).expect("sysfs"))
        });
        let mut layers = layers.expect("the host").expect("layers");
        assert_eq!(group_of(&layers), None);
        assert!(need_tags(&layers).is_empty());
        layers.sort_by(|a, b| a.name.cmp(&b.name));
        layers.iter_mut().for_each(|layer| layer.above.sort());
        let text =
            format!("br0:bridge < mv0 mv1\n mv0:macvlan\n mv1:macvlan\n {device}:veth < br0");
        let mut expected = stack(&text);
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(layers, expected);
    }

    #[test]
    fn a_graph_that_names_what_is_not_there_or_turns_back_ends() {
        assert!(from("eth0", &stack("eth0 < gone")).is_err());
        let ring = stack("eth0 < a\n a:bridge < b\n b:bridge < a eth0");
        assert_eq!(from("eth0", &ring).expect("all are there").len(), 3);
    }
}

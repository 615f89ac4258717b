//! What the kernel says of a device's NAPI instances: which queue is whose, and how long one keeps
//! packets in GRO (netlink's family `netdev`; kernels before 6.8 lack the answers).

use std::collections::BTreeMap;
use std::io;

use kit::netlink::{GENERIC_HEADER, Socket, attributes_after, generic, number_attribute};
use netlink_sys::protocols::NETLINK_GENERIC;
use rustix::io::Errno;
use xsk::Device;

use crate::Result;
use crate::error::Context as _;

/// Of linux/genetlink.h and linux/netdev.h.
mod kernel {
    /// `NETDEV_CMD_QUEUE_GET`.
    pub(super) const QUEUE_GET: u8 = 10;
    /// `NETDEV_A_QUEUE_ID`, `_IFINDEX`, `_TYPE`, `_NAPI_ID`.
    pub(super) const QUEUE_ID: u16 = 1;
    pub(super) const QUEUE_DEVICE: u16 = 2;
    pub(super) const QUEUE_TYPE: u16 = 3;
    pub(super) const QUEUE_NAPI: u16 = 4;
    /// `NETDEV_QUEUE_TYPE_RX`.
    pub(super) const RECEIVES: u64 = 0;

    /// `NETDEV_CMD_NAPI_GET`.
    pub(super) const NAPI_GET: u8 = 11;
    /// `NETDEV_A_NAPI_IFINDEX`, `_GRO_FLUSH_TIMEOUT`.
    pub(super) const NAPI_DEVICE: u16 = 1;
    pub(super) const NAPI_GRO_FLUSH_TIMEOUT: u16 = 6;
}

/// What is known of a device's NAPI instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Napis {
    /// The receive queues of each that has several, as far as the driver says it.
    pub(super) shared: Vec<Vec<u32>>,
    /// The longest that any of them keeps packets in GRO after a poll, in nanoseconds.
    pub(super) gro_flush_timeout: u64,
}

/// Asks; nothing is known where the kernel or the driver does not say.
pub(super) fn napis(device: &Device) -> Result<Napis> {
    let unknown = |error: &io::Error| {
        let errno = Errno::from_io_error(error);
        matches!(errno, Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL | Errno::NODEV))
    };
    match ask(device) {
        Err(error) if unknown(&error) => Ok(Napis::default()),
        answered => answered
            .map(|(queues, napis)| read(&queues, &napis))
            .context(format_args!("{device}: cannot ask for its NAPI instances")),
    }
}

/// A device's queues, and its instances.
fn ask(device: &Device) -> io::Result<(Vec<Attributes>, Vec<Attributes>)> {
    let mut socket = Socket::open(NETLINK_GENERIC)?;
    let family = socket.family("netdev")?;
    let mut dump = |command, of| {
        let request = generic(command, &[number_attribute(of, device.index())]);
        socket.dump(family, &request, |message| Ok(Some(numbers(message))))
    };
    let queues = dump(kernel::QUEUE_GET, kernel::QUEUE_DEVICE)?;
    Ok((queues, dump(kernel::NAPI_GET, kernel::NAPI_DEVICE)?))
}

/// An object of a dump: the attributes that are numbers, by their kind.
type Attributes = BTreeMap<u16, u64>;

fn read(queues: &[Attributes], napis: &[Attributes]) -> Napis {
    let mut by_napi = BTreeMap::<u64, Vec<u32>>::new();
    for queue in queues {
        if let (Some(&kernel::RECEIVES), Some(&id), Some(&napi)) = (
            queue.get(&kernel::QUEUE_TYPE),
            queue.get(&kernel::QUEUE_ID),
            queue.get(&kernel::QUEUE_NAPI),
        ) {
            by_napi.entry(napi).or_default().push(id as u32);
        }
    }
    let timeouts = napis.iter().filter_map(|napi| napi.get(&kernel::NAPI_GRO_FLUSH_TIMEOUT));
    Napis {
        shared: by_napi.into_values().filter(|queues| queues.len() > 1).collect(),
        gro_flush_timeout: timeouts.copied().max().unwrap_or(0),
    }
}

/// Those of the attributes that are numbers of two, four or eight bytes.
fn numbers(message: &[u8]) -> Attributes {
    let number = |value: &[u8]| match *value {
        [a, b] => Some(u64::from(u16::from_ne_bytes([a, b]))),
        [a, b, c, d] => Some(u64::from(u32::from_ne_bytes([a, b, c, d]))),
        _ => value.try_into().map(u64::from_ne_bytes).ok(),
    };
    let all = attributes_after(GENERIC_HEADER, message);
    all.filter_map(|(kind, value)| Some((kind, number(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue as the kernel describes it.
    fn queue(id: u64, kind: u64, napi: Option<u64>) -> Attributes {
        let known = [(kernel::QUEUE_ID, id), (kernel::QUEUE_TYPE, kind), (kernel::QUEUE_DEVICE, 2)];
        known.into_iter().chain(napi.map(|napi| (kernel::QUEUE_NAPI, napi))).collect()
    }

    #[test]
    fn queues_that_share_an_instance_are_found() {
        for (queues, shared) in [
            (vec![], vec![]),
            // A driver that does not say.
            (vec![queue(0, 0, None), queue(1, 0, None)], vec![]),
            // As usual: an instance for a receive queue and the send queue of its number.
            (
                vec![
                    queue(0, 0, Some(9)),
                    queue(1, 0, Some(8)),
                    queue(0, 1, Some(9)),
                    queue(1, 1, Some(8)),
                ],
                vec![],
            ),
            (
                vec![
                    queue(0, 0, Some(9)),
                    queue(1, 0, Some(8)),
                    queue(2, 0, Some(9)),
                    queue(3, 0, Some(8)),
                ],
                vec![vec![1, 3], vec![0, 2]],
            ),
        ] {
            assert_eq!(read(&queues, &[]).shared, shared, "{queues:?}");
        }
    }

    #[test]
    fn the_longest_timeout_counts() {
        let napi = |timeout| Attributes::from([(kernel::NAPI_GRO_FLUSH_TIMEOUT, timeout)]);
        for (napis, longest) in [
            (vec![], 0),
            (vec![napi(0)], 0),
            (vec![napi(20_000), Attributes::default(), napi(5)], 20_000),
        ] {
            assert_eq!(read(&[], &napis).gro_flush_timeout, longest);
        }
    }

    #[test]
    fn root_the_kernel_answers_for_a_device_of_software() {
        let test = "root_the_kernel_answers_for_a_device_of_software";
        if !lab::testing::root(test) {
            return;
        }
        let lab = lab::Lab::new("stnapi").expect("a lab");
        let (a, b) = (lab.host("a").expect("a host"), lab.host("b").expect("a host"));
        let options = lab::LinkOptions { queues: 3, ..lab::LinkOptions::default() };
        let link = lab.link(&a, &b, options).expect("a link");
        let device = link.a.device;
        // With GRO it has instances.
        a.command("ethtool").args(["-K", &device, "gro", "on"]).run().expect("ethtool");
        let asked = a.run(move || {
            let device = Device::find(&device).expect("a device");
            let (queues, instances) = ask(&device)?;
            io::Result::Ok((queues, instances, napis(&device).expect("an answer")))
        });
        let (queues, instances, napis) = match asked.expect("the host") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return eprintln!("skipped: {test}: the kernel has no netlink family netdev");
            }
            answered => answered.expect("answers"),
        };
        let receives =
            |queue: &&Attributes| queue.get(&kernel::QUEUE_TYPE) == Some(&kernel::RECEIVES);
        assert_eq!(queues.iter().filter(receives).count(), 3, "{queues:?}");
        assert_eq!(instances.len(), 3, "{instances:?}");
        assert_eq!(napis, Napis::default());
    }
}

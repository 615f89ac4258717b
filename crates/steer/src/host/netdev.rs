//! What the kernel says of a device's NAPI instances: which queue is whose, and how long one keeps
//! packets in GRO (netlink's family `netdev`; kernels before 6.8 lack the answers).

use std::collections::BTreeMap;
use std::io;

use netlink_packet_core::{
    Emitable as _, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NetlinkHeader, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};
use rustix::io::Errno;
use xsk::Device;

use crate::{Error, Result};

/// Of linux/genetlink.h and linux/netdev.h.
mod kernel {
    /// `GENL_ID_CTRL`.
    pub(super) const CONTROL: u16 = 16;
    /// `CTRL_CMD_GETFAMILY`.
    pub(super) const GET_FAMILY: u8 = 3;
    /// `CTRL_ATTR_FAMILY_ID` and `CTRL_ATTR_FAMILY_NAME`.
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;

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
///
/// # Errors
/// What the system reports.
pub(super) fn napis(device: &Device) -> Result<Napis> {
    let failed = |error| Error::io(format!("{device}: cannot ask for its NAPI instances"), error);
    let unknown = |error: &io::Error| {
        let errno = Errno::from_io_error(error);
        matches!(errno, Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL | Errno::NODEV))
    };
    let ask = || -> io::Result<Napis> {
        let mut netlink = Netlink::open()?;
        let family = netlink.family("netdev")?;
        let queues =
            netlink.dump(family, kernel::QUEUE_GET, kernel::QUEUE_DEVICE, device.index())?;
        let napis = netlink.dump(family, kernel::NAPI_GET, kernel::NAPI_DEVICE, device.index())?;
        Ok(read(&queues, &napis))
    };
    match ask() {
        Err(error) if unknown(&error) => Ok(Napis::default()),
        other => other.map_err(failed),
    }
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

/// Generic netlink, one question at a time.
struct Netlink(Socket);

impl Netlink {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        Ok(Self(socket))
    }

    /// A family's number, which the kernel gives out as it starts.
    fn family(&mut self, name: &str) -> io::Result<u16> {
        let name = [name.as_bytes(), &[0]].concat();
        let attribute = attribute(kernel::FAMILY_NAME, &name);
        let found = self.ask(kernel::CONTROL, 0, kernel::GET_FAMILY, &attribute)?;
        let id = found.first().and_then(|family| family.get(&kernel::FAMILY_ID));
        id.map(|id| *id as u16).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// All objects of one device, which the attribute `of` names.
    fn dump(
        &mut self,
        family: u16,
        command: u8,
        of: u16,
        index: u32,
    ) -> io::Result<Vec<Attributes>> {
        self.ask(family, NLM_F_DUMP, command, &attribute(of, &index.to_ne_bytes()))
    }

    fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        command: u8,
        attributes: &[u8],
    ) -> io::Result<Vec<Attributes>> {
        /// `struct genlmsghdr`: the command, the family's version, and two bytes that nobody uses.
        const HEADER: usize = 4;

        let mut header = NetlinkHeader::default();
        (header.message_type, header.flags) = (kind, NLM_F_REQUEST | flags);
        header.length = (header.buffer_len() + HEADER + attributes.len()) as u32;
        let mut request = vec![0; header.buffer_len()];
        header.emit(&mut request);
        request.extend([command, 1, 0, 0]);
        request.extend(attributes);
        self.0.send_to(&request, &SocketAddr::new(0, 0), 0)?;
        let mut found = Vec::new();
        loop {
            let (answer, _) = self.0.recv_from_full()?;
            let mut rest = answer.as_slice();
            while let Ok(message) = NetlinkBuffer::new_checked(rest) {
                match message.message_type() {
                    NLMSG_DONE => return Ok(found),
                    NLMSG_ERROR => return Err(error(message.payload())),
                    _ => found.push(numbers(message.payload().get(HEADER..).unwrap_or_default())),
                }
                let length = (message.length() as usize).next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
            }
            if flags & NLM_F_DUMP == 0 {
                return Ok(found);
            }
        }
    }
}

/// `struct nlmsgerr`: begins with the negative error.
fn error(payload: &[u8]) -> io::Error {
    match payload.first_chunk() {
        Some(bytes) => io::Error::from_raw_os_error(-i32::from_ne_bytes(*bytes)),
        None => io::ErrorKind::InvalidData.into(),
    }
}

/// An attribute as netlink has it: its length without what pads it, its kind, its value.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Those of the attributes that are numbers of two, four or eight bytes.
fn numbers(attributes: &[u8]) -> Attributes {
    let number = |value: &[u8]| match *value {
        [a, b] => Some(u64::from(u16::from_ne_bytes([a, b]))),
        [a, b, c, d] => Some(u64::from(u32::from_ne_bytes([a, b, c, d]))),
        _ => value.try_into().map(u64::from_ne_bytes).ok(),
    };
    let attributes = NlasIterator::new(attributes).map_while(std::result::Result::ok);
    attributes.filter_map(|one| Some((one.kind(), number(one.value())?))).collect()
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
            let mut netlink = Netlink::open()?;
            let family = netlink.family("netdev")?;
            let queues =
                netlink.dump(family, kernel::QUEUE_GET, kernel::QUEUE_DEVICE, device.index())?;
            let instances =
                netlink.dump(family, kernel::NAPI_GET, kernel::NAPI_DEVICE, device.index())?;
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

//! UDP frames as a network card's driver hands them on: in pages, without a socket buffer, for
//! measuring what receives them. What a [`super::FrameGenerator`] makes has passed that point.

use std::{net::Ipv4Addr, sync::Arc};

use super::{
    index,
    programs::{Programs, constants, repeat, udp_frame},
    threads::Threads,
};
use crate::{End, Error, Mac, Result};

/// `BPF_F_TEST_XDP_LIVE_FRAMES` of linux/bpf.h.
const LIVE_FRAMES: u32 = 1 << 1;
/// Frames that one system call makes: seconds of work, as nothing comes for a while between two
/// calls. Once it is to stop, the rest is dropped where it is made, in a tenth of a second.
const FRAMES: u32 = 1 << 23;
/// The frames' addresses: of the block for measuring.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)];

/// What a [`LiveSender`] sends.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// Bytes of a frame, without the checksum that a wire would add: 60 to 1514.
    pub size: usize,
    /// The hardware address that they go to.
    pub to: Mac,
    /// The first UDP source port; each frame has the next one.
    pub first_port: u16,
    /// How many source ports there are, at least 1.
    pub ports: u16,
    /// The CPU that the thread is pinned to; none: not pinned.
    pub cpu: Option<usize>,
}

/// A thread that sends frames from a veth as fast as it goes, until dropped.
///
/// What the other end does in softirqs, it does on this thread's CPU. That end needs NAPI: GRO that
/// is on, or an XDP program in its driver; without, all frames are dropped.
#[derive(Debug)]
pub struct LiveSender {
    programs: Arc<Programs>,
    threads: Threads<Result<()>>,
}

impl LiveSender {
    /// Starts to send from this end of a link.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for options out of range;
    /// [`ErrorKind::NotPermitted`](crate::ErrorKind::NotPermitted) without root;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) where BPF is not to be had.
    pub fn start(from: &End, options: &LiveOptions) -> Result<Self> {
        let LiveOptions { size, to, first_port, ports, cpu } = *options;
        if !(60..=1514).contains(&size) || ports == 0 {
            return Err(Error::invalid(format!(
                "{size} bytes, {ports} ports: 60 to 1514, 1 or more"
            )));
        }
        let programs = Arc::new(Programs::load(&[
            (constants::DEVICE, index(&from.host, &from.device)?),
            (constants::FIRST_PORT, first_port.into()),
            (constants::PORTS, ports.into()),
        ])?);
        let frame = udp_frame(size, [from.mac, to], ADDRESSES);
        let mut sender = Self { programs: programs.clone(), threads: Threads::new()? };
        sender.threads.start(&from.host, "send-live", cpu, move |stop| {
            while !stop.is_set() {
                repeat(&programs.send_live, &frame, FRAMES, LIVE_FRAMES)?;
            }
            Ok(())
        })?;
        Ok(sender)
    }

    /// Stops it.
    ///
    /// # Errors
    /// That of the thread, if it could not go on until now.
    pub fn stop(mut self) -> Result<()> {
        self.drop_the_rest();
        self.threads.finish().into_iter().collect()
    }

    fn drop_the_rest(&self) {
        self.threads.stop().set();
        // Without it the thread takes longer to end, and that is all.
        let _ = self.programs.set(constants::PORTS, 0);
    }
}

impl Drop for LiveSender {
    fn drop(&mut self) {
        self.drop_the_rest();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Lab, LinkOptions};

    #[test]
    fn root_live_frames_arrive_where_there_is_napi() {
        if !crate::testing::root("root_live_frames_arrive_where_there_is_napi") {
            return;
        }
        let lab = Lab::new("live").unwrap();
        let hosts = [lab.host("a").unwrap(), lab.host("b").unwrap()];
        let link = lab.link(&hosts[0], &hosts[1], LinkOptions::default()).unwrap();
        let ethtool = link.b.host.command("ethtool").args(["-K", &link.b.device, "gro", "on"]);
        ethtool.run().unwrap();
        let options =
            LiveOptions { size: 100, to: link.b.mac, first_port: 1000, ports: 3, cpu: None };
        let mut capture = super::super::FrameCapture::open(&link.b.host, &link.b.device).unwrap();
        let sender = LiveSender::start(&link.a, &options).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let mut ports = std::collections::BTreeSet::new();
        while ports.len() < 3 {
            assert!(Instant::now() < until, "{ports:?}");
            let Some(frame) = capture.next(Duration::from_millis(100)).unwrap() else { continue };
            if frame.bytes.len() == 100 && frame.bytes[23] == 17 {
                ports.insert(u16::from_be_bytes([frame.bytes[34], frame.bytes[35]]));
            }
        }
        sender.stop().unwrap();
        assert_eq!(ports.into_iter().collect::<Vec<_>>(), [1000, 1001, 1002]);
        let wrong = LiveOptions { size: 59, ..options };
        assert!(LiveSender::start(&link.a, &wrong).is_err());
    }
}

//! Waiting for a device's carrier: a card that gets an XDP program, or loses one, begins anew, and
//! drops what is sent until its link is up again.

use std::thread;
use std::time::{Duration, Instant};

use xsk::Device;

/// How long a link that was up may take to come up again: some cards take seconds.
const AGAIN: Duration = Duration::from_secs(10);

/// How long one may take that was not: another program may have ended a moment ago.
const AT_ALL: Duration = Duration::from_secs(3);

/// A longer wait is said.
const NOTED: Duration = Duration::from_millis(200);

const LOOK: Duration = Duration::from_millis(20);

/// A device whose carrier is waited for.
#[derive(Debug)]
pub(crate) struct Carrier {
    device: Device,
    patience: Duration,
}

impl Carrier {
    /// Those of the devices that are up, before anything is done to them.
    pub(crate) fn of<'a>(
        devices: impl IntoIterator<Item = &'a Device>,
    ) -> xsk::Result<Vec<Carrier>> {
        let mut all = Vec::new();
        for device in devices {
            if device.is_up()? {
                let patience = if device.has_carrier()? { AGAIN } else { AT_ALL };
                all.push(Carrier { device: device.clone(), patience });
            }
        }
        Ok(all)
    }

    /// Waits until it is there; says so if it is not.
    pub(crate) fn wait(&self) -> xsk::Result<()> {
        let Carrier { device, patience } = self;
        let (start, mut said) = (Instant::now(), false);
        while !device.has_carrier()? {
            let waited = start.elapsed();
            if waited >= *patience {
                tracing::warn!("{device} has no carrier: what is sent there is dropped");
                return Ok(());
            }
            if waited >= NOTED && !std::mem::replace(&mut said, true) {
                tracing::info!("waiting for {device}'s carrier, {} s at most", patience.as_secs());
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

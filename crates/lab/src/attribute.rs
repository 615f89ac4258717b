//! A device's files in sysfs.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
};

use rustix::{
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
};

use crate::{End, Error, Result};

/// Packets and bytes that a device has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes received, link headers included.
    pub rx_bytes: u64,
    /// Packets received.
    pub rx_packets: u64,
    /// Bytes sent, link headers included.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
}

impl End {
    /// What the device has counted since it was made.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the host cannot be read.
    pub fn counters(&self) -> Result<DeviceCounters> {
        let count = |name| {
            let text = self.attribute(&format!("statistics/{name}"))?;
            text.parse().map_err(|error| Error::invalid(format!("{name} {text}: {error}")))
        };
        Ok(DeviceCounters {
            rx_bytes: count("rx_bytes")?,
            rx_packets: count("rx_packets")?,
            tx_bytes: count("tx_bytes")?,
            tx_packets: count("tx_packets")?,
        })
    }

    /// Reads a file of the device's folder in sysfs, such as `queues/rx-0/rps_cpus`, without the
    /// line's end.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a name that leads out of the folder;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if there is no such file.
    pub fn attribute(&self, name: &str) -> Result<String> {
        let mut text = String::new();
        self.with_attribute(name, OFlags::RDONLY, |file| file.read_to_string(&mut text).map(drop))?;
        Ok(text.trim_end().to_owned())
    }

    /// Writes a file of the device's folder in sysfs.
    ///
    /// # Errors
    /// As [`attribute`](Self::attribute), and if the kernel refuses the value.
    pub fn set_attribute(&self, name: &str, value: &str) -> Result<()> {
        self.with_attribute(name, OFlags::WRONLY, |file| file.write_all(value.as_bytes()))
    }

    fn with_attribute(
        &self,
        name: &str,
        flags: OFlags,
        work: impl FnOnce(&mut File) -> io::Result<()> + Send,
    ) -> Result<()> {
        if name.starts_with('/') || name.split('/').any(|part| part == "..") {
            return Err(Error::invalid(format!("{name}: expected a file below the device")));
        }
        self.host.refuse_here("a device's files")?;
        let path = format!("class/net/{}/{name}", self.device);
        let access = || -> io::Result<()> {
            // What is mounted shows the machine's devices. This one shows those of the namespace
            // that the thread is in, and is gone with its last descriptor.
            let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&sysfs)?;
            let flags_of_mount = MountAttrFlags::empty();
            let root = fsmount(&sysfs, FsMountFlags::FSMOUNT_CLOEXEC, flags_of_mount)?;
            work(&mut openat(root, &path, flags | OFlags::CLOEXEC, Mode::empty())?.into())
        };
        let accessed = self.host.run(access)?;
        accessed.map_err(|error| Error::io(format!("{}: /sys/{path}", self.host), error))
    }
}

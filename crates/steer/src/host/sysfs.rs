//! sysfs of a network namespace.

use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use rustix::fs::{Dir, DirEntry, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use xsk::Device;

use crate::error::Context as _;
use crate::{Error, ErrorKind, Result};

/// sysfs as the caller's network namespace has it: what is mounted may be another one's.
#[derive(Debug)]
pub(super) struct Sysfs(OwnedFd);

impl Sysfs {
    /// One of the caller's own, or what is mounted, if that shows this device and the caller may mount
    /// nothing.
    pub(super) fn new(device: &Device) -> Result<Self> {
        let mount = || {
            let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&sysfs)?;
            fsmount(&sysfs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)
        };
        match mount() {
            Err(Errno::PERM) => Self::mounted(device)?.ok_or_else(|| {
                Error::new(
                    ErrorKind::NotPermitted,
                    format!(
                        "looking at the queues of {device} needs root, or CAP_SYS_ADMIN: the sysfs at \
                         /sys is another network namespace's"
                    ),
                )
            }),
            mounted => mounted.map(Self).context("cannot look into sysfs"),
        }
    }

    /// What is mounted, if it has the device: by its name, number and hardware address, as other
    /// namespaces number their devices alike.
    fn mounted(device: &Device) -> Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let sysfs = openat(rustix::fs::CWD, "/sys", flags, Mode::empty());
        let sysfs = Self(sysfs.context("cannot open /sys")?);
        let read = |what: &str| sysfs.read(&format!("class/net/{}/{what}", device.name()));
        let [index, address] = [read("ifindex")?, read("address")?];
        let octets = device.mac()?.map(|byte| format!("{byte:02x}")).join(":");
        let is_it = index.is_some_and(|index| index.trim() == device.index().to_string())
            && address.is_some_and(|address| address.trim() == octets);
        Ok(is_it.then_some(sysfs))
    }

    /// A file's text; none if it is not there.
    pub(super) fn read(&self, path: &str) -> Result<Option<String>> {
        let read = || -> io::Result<String> {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let mut text = String::new();
            fs::File::from(openat(&self.0, path, flags, Mode::empty())?)
                .read_to_string(&mut text)?;
            Ok(text)
        };
        match read() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => text.map(Some).context(format_args!("cannot read /sys/{path}")),
        }
    }

    /// The names in a folder.
    pub(super) fn list(&self, path: &str) -> Result<Vec<String>> {
        let list = || -> rustix::io::Result<Vec<String>> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let entries = Dir::read_from(openat(&self.0, path, flags, Mode::empty())?)?;
            let name = |entry: DirEntry| entry.file_name().to_string_lossy().into_owned();
            entries.map(|entry| entry.map(name)).collect()
        };
        list().context(format_args!("cannot list /sys/{path}"))
    }
}

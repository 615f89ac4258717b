//! Settings of the host: a sysctl, or a file that the kernel makes up, such as one of sysfs.
//!
//! A [`Setting`] reads, writes and compares them. It does not remember what they were:
//! [`Subject::hold`](crate::Subject::hold) does, and puts it back.
//!
//! A setting is one line of text that can be read and written. Files of several lines, such as
//! cgroup's `io.max`, are refused: the kernel does not take such a text back. So are files of one
//! process, because its id may be another's when the value is to be put back.

mod path;
mod value;

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::{Error, ErrorKind, Result};
use path::Place;
use value::Text;

pub(crate) use value::same;

/// The longest value in bytes: what sysfs gives and takes, a page.
const MAX_VALUE: usize = 4096;

/// A sysctl or a file of the kernel's, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    name: String,
    place: Place,
}

/// In the place of its device number, the sysfs of the network namespace.
const OWN_SYSFS: u64 = 0;

/// Which file a setting is, whatever it was called: names and mounts may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its path without links.
    pub(crate) path: PathBuf,
    /// The file system, or [`OWN_SYSFS`].
    pub(crate) device: u64,
    /// The number of the network namespace that it was looked at from.
    pub(crate) namespace: u64,
}

impl FromStr for Setting {
    type Err = Error;

    /// Reads `sysctl:NAME` or `file:PATH`; whether there is such a file is asked later.
    ///
    /// A sysctl's name is as sysctl(8) has it. The first separator decides: if it is a dot, dots
    /// separate and a `/` stands for a dot in a name (`net.ipv4.conf.eth0/1.rp_filter`); if it is a
    /// `/`, it is a path below `/proc/sys`.
    fn from_str(name: &str) -> Result<Self> {
        let place = match name.split_once(':') {
            Some(("sysctl", sysctl)) => Place::of_sysctl(sysctl),
            Some(("file", path)) => Place::of_file(path),
            _ => Err("expected sysctl:NAME or file:PATH".to_owned()),
        };
        match place {
            Ok(place) => Ok(Self { name: name.to_owned(), place }),
            Err(trouble) => Err(bad(name, &trouble)),
        }
    }
}

impl Setting {
    /// The name that it was given.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file, such as `/proc/sys/net/core/somaxconn`, perhaps by way of links.
    pub fn path(&self) -> PathBuf {
        self.place.path()
    }

    /// The value without the line's end; of a choice such as `[always] never` the word in brackets.
    ///
    /// # Errors
    /// [`ErrorKind::NoSetting`] where there is no such file (any more); [`ErrorKind::BadSubject`]
    /// for a file that is no setting; [`ErrorKind::NotPermitted`], [`ErrorKind::Unreadable`].
    pub fn read(&self) -> Result<String> {
        Ok(self.text()?.value().to_owned())
    }

    /// Writes a value and returns what is then in force. The kernel may make another value of it:
    /// [`Subject::hold`](crate::Subject::hold) refuses that, this does not.
    ///
    /// # Errors
    /// [`ErrorKind::BadValue`] for one that the kernel does not take, with the choices where it
    /// says them; and as for [`read`](Self::read).
    pub fn write(&self, value: &str) -> Result<String> {
        if value.len() >= MAX_VALUE || value.contains(['\n', '\0']) {
            let message = format!(
                "{self}: {value:.60?} is no value (expected one line of at most {} bytes)",
                MAX_VALUE - 1
            );
            return Err(Error::new(ErrorKind::BadValue, message));
        }
        let mut file = self.open(OFlags::WRONLY)?;
        // In one call: sysctls take what the first one has.
        match file.write(format!("{value}\n").as_bytes()) {
            Ok(written) if written >= value.len() => self.read(),
            Ok(written) => {
                let message = format!("{self}: the kernel took {written} bytes of {value:?}");
                Err(Error::new(ErrorKind::Io, message))
            }
            Err(error) => Err(self.refused(value, error)),
        }
    }

    /// Whether it can be read and written, before anything is: a write without data would not tell.
    pub(crate) fn check(&self) -> Result<()> {
        self.open(OFlags::WRONLY)?;
        self.text().map(drop)
    }

    pub(crate) fn identity(&self) -> Result<Identity> {
        let file = self.open(OFlags::RDONLY)?;
        let path = path::of_open(&file).map_err(|error| self.failed("look at", error))?;
        let device = match path::is_of_own_sysfs(&file) {
            Ok(true) => OWN_SYSFS,
            Ok(false) => file.metadata().map_err(|error| self.failed("look at", error))?.dev(),
            Err(error) => return Err(self.failed("look at", error.into())),
        };
        let namespace = path::network_namespace();
        let namespace = namespace.map_err(|error| self.failed("look at", error))?;
        Ok(Identity { path, device, namespace })
    }

    fn text(&self) -> Result<Text> {
        let mut bytes = Vec::new();
        let file = self.open(OFlags::RDONLY)?;
        let read = file.take(MAX_VALUE as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.failed("read", error))?;
        let text = match String::from_utf8(bytes) {
            Ok(text) if text.len() <= MAX_VALUE => Text::of(&text),
            Ok(_) => Err(format!("it is longer than {MAX_VALUE} bytes")),
            Err(_) => Err("it is not text".to_owned()),
        };
        text.map_err(|trouble| bad(&self.name, &trouble))
    }

    fn open(&self, flags: OFlags) -> Result<File> {
        // Not to wait in it: a pipe or a device is refused only once it is open.
        let opened = self.place.open(flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY);
        match opened {
            Ok(Ok(file)) => Ok(file),
            Ok(Err(trouble)) => Err(bad(&self.name, &trouble)),
            Err(error) => {
                let to = if flags.contains(OFlags::WRONLY) { "write" } else { "read" };
                Err(self.failed(to, error.into()))
            }
        }
    }

    fn failed(&self, doing: &str, error: io::Error) -> Error {
        let path = self.path();
        let message = format!("cannot {doing} {self} ({})", path.display());
        let kind = match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::NOTDIR) => ErrorKind::NoSetting,
            Some(Errno::PERM | Errno::ACCESS | Errno::ROFS) => ErrorKind::NotPermitted,
            Some(Errno::LOOP | Errno::XDEV) => {
                return bad(&self.name, "a link in its path leads out of the kernel's file system");
            }
            _ if doing == "read" => ErrorKind::Unreadable,
            _ => ErrorKind::Io,
        };
        Error::caused(kind, message, error)
    }

    fn refused(&self, value: &str, error: io::Error) -> Error {
        match Errno::from_io_error(&error) {
            Some(
                Errno::INVAL | Errno::RANGE | Errno::OVERFLOW | Errno::NOENT | Errno::OPNOTSUPP,
            ) => {
                let text = self.text();
                let words = text.as_ref().ok().and_then(Text::choices);
                let expected = match (&text, words) {
                    (_, Some(words)) => format!(" (expected {})", kit::or(words)),
                    (Ok(text), None) => format!(" (it is {:?} now)", text.value()),
                    (Err(_), None) => String::new(),
                };
                let message = format!("{self} does not take {value:?}{expected}");
                Error::caused(ErrorKind::BadValue, message, error)
            }
            _ => self.failed(&format!("write {value:?} to"), error),
        }
    }
}

impl Identity {
    /// What tells the file from all others: a file that shows another thing in another network
    /// namespace is another file there.
    pub(crate) fn key(&self) -> (&Path, u64, Option<u64>) {
        let is_of_namespace = self.device == OWN_SYSFS || path::is_of_namespace(&self.path);
        let namespace = is_of_namespace.then_some(self.namespace);
        (&self.path, self.device, namespace)
    }

    /// Whether it is of a network namespace in which somebody is left, and which is not this one.
    pub(crate) fn is_elsewhere(&self) -> bool {
        path::network_namespace().ok() != Some(self.namespace)
            && !path::is_gone(Path::new("/proc"), self.namespace)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

fn bad(name: &str, trouble: &str) -> Error {
    Error::new(ErrorKind::BadSubject, format!("{name:?} is no setting to try: {trouble}"))
}

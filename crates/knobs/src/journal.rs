//! What a setting of the host was before it was changed, in a file that outlives the process.
//!
//! # Protocol
//!
//! A setting's journal is one file in the runtime directory, named after the file that the setting
//! is. Whoever changes the setting has it locked (flock) from before the first change until the
//! value is restored; the kernel unlocks it when the process ends, however it ends. So a journal
//! that can be locked is a dead process's, and two processes never have one setting.
//!
//! 1. **Claim**: the journal is created without a value, by a rename that replaces nothing. The
//!    value before is read only then: an earlier holder might have been about to restore it.
//! 2. **Begin**: the value before is recorded.
//! 3. **Write ahead**: a value that is new to the journal is recorded as being written, then
//!    written, then recorded as what the kernel made of it. A value that is in the journal already
//!    needs no record.
//! 4. **End**: the value before is written, then the journal is removed.
//!
//! Killed after 1, nothing has changed. Killed later, the journal has the value before, and every
//! value by which to tell that the present one is ours. Only a process that was killed in the
//! middle of 3 leaves a journal that does not know what the kernel made of its value: then any
//! present value counts as ours.
//!
//! Each record is a new file that is locked before it takes the journal's name. Whoever has locked
//! a journal therefore looks whether it still has that name. Nothing is synchronised to a disk:
//! settings do not outlive the kernel, and a journal of an earlier boot is only removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{CWD, FlockOperation, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Context as _;
use crate::setting::{Identity, same};
use crate::{Error, ErrorKind, Result, SCHEMA, Setting, runtime_dir, undo};

/// The end of a journal's file name.
const SUFFIX: &str = ".undo";

/// The end of the name of one that is being written.
const NEW: &str = ".new";

/// The longest journal that is believed, in bytes.
const MAX_JOURNAL: u64 = 1024 * 1024;

/// How long to wait for somebody who is restoring what a dead process left.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);

/// When a file that is being written has been left there by somebody who was killed.
const ABANDONED: Duration = Duration::from_secs(60);

/// The journal of one setting, locked.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    /// The lock. Its file has the journal's name.
    lock: File,
    pub(crate) record: Record,
}

/// What a journal says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    schema: u64,
    /// The setting's name, such as `sysctl:net.core.somaxconn`.
    pub(crate) setting: String,
    /// Its file: path, file system, network namespace.
    path: PathBuf,
    device: u64,
    namespace: u64,
    /// Whose it is: the boot, the process, and when that started, in ticks since the boot.
    pub(crate) boot: String,
    pub(crate) pid: u32,
    start: u64,
    /// The value before; none as long as nothing has been written.
    pub(crate) before: Option<String>,
    /// What was written and what the kernel made of it.
    pub(crate) ours: Vec<String>,
    /// What is being written for the first time.
    pub(crate) writing: Option<String>,
}

/// A journal that somebody finds.
pub(crate) enum Found {
    /// Its process is dead.
    Left(Journal),
    /// Somebody has it locked.
    InUse(Record),
    /// What it says makes no sense.
    Damaged(String),
    /// It is gone.
    Gone,
}

impl Journal {
    /// Claims a setting for this process. What a dead process left of it is restored first.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] where another process has it.
    pub(crate) fn claim(dir: &Path, setting: &Setting) -> Result<Self> {
        runtime_dir::prepare(dir)?;
        let record = Record::new(setting)?;
        let path = dir.join(record.file_name());
        let deadline = Instant::now() + PATIENCE;
        loop {
            match open(&path)? {
                Found::Gone => match write(&path, &record, RenameFlags::NOREPLACE) {
                    Ok(lock) => return Ok(Self { path, lock, record }),
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(cannot_write(&path, error)),
                },
                Found::Left(journal) => {
                    let undone = undo::settle(journal, false);
                    undone.log();
                    if let Some(trouble) = undone.trouble() {
                        return Err(trouble);
                    }
                }
                Found::InUse(other) if other.is_alive() || Instant::now() > deadline => {
                    let (name, pid) = (setting.name(), other.pid);
                    let message = format!(
                        "{name} is in use by process {pid}, which will restore it: wait for its end"
                    );
                    return Err(Error::new(ErrorKind::Held, message));
                }
                // Somebody restores it just now.
                Found::InUse(_) => thread::sleep(LOOK),
                Found::Damaged(trouble) => return Err(damaged(&path, &trouble)),
            }
        }
    }

    /// Records the value before anything is written.
    pub(crate) fn begin(&mut self, before: &str) -> Result<()> {
        self.save(Record { before: Some(before.to_owned()), ..self.record.clone() })
    }

    /// Records that a value is about to be written.
    pub(crate) fn writing(&mut self, value: &str) -> Result<()> {
        if self.record.has(value) {
            return Ok(());
        }
        self.save(Record { writing: Some(value.to_owned()), ..self.record.clone() })
    }

    /// Records that it has been written, and what the kernel made of it; none if it was refused.
    pub(crate) fn written(&mut self, now: Option<&str>) -> Result<()> {
        let mut record = self.record.clone();
        let written = record.writing.take().filter(|_| now.is_some());
        for value in written.as_deref().into_iter().chain(now) {
            if !record.has(value) {
                record.ours.push(value.to_owned());
            }
        }
        if record == self.record {
            return Ok(());
        }
        self.save(record)
    }

    /// Removes the journal, for there is nothing to restore.
    pub(crate) fn remove(&self) -> Result<()> {
        fs::remove_file(&self.path).context(format!("remove the journal {}", self.path.display()))
    }

    fn save(&mut self, record: Record) -> Result<()> {
        let saved = write(&self.path, &record, RenameFlags::empty());
        self.lock = saved.map_err(|error| cannot_write(&self.path, error))?;
        self.record = record;
        Ok(())
    }
}

impl Record {
    fn new(setting: &Setting) -> Result<Self> {
        let Identity { path, device, namespace } = setting.identity()?;
        let pid = std::process::id();
        Ok(Self {
            schema: SCHEMA,
            setting: setting.name().to_owned(),
            path,
            device,
            namespace,
            boot: boot()?,
            pid,
            start: started(pid).context(format!("read /proc/{pid}/stat"))?,
            before: None,
            ours: Vec::new(),
            writing: None,
        })
    }

    /// The same for every process that means the same file, and for no other file.
    fn file_name(&self) -> String {
        let hash = Sha256::digest(format!("{:?}", self.identity().key()));
        let name: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name}{SUFFIX}")
    }

    /// The file whose setting it was.
    pub(crate) fn identity(&self) -> Identity {
        Identity { path: self.path.clone(), device: self.device, namespace: self.namespace }
    }

    /// Whether a value is known to be ours.
    pub(crate) fn has(&self, value: &str) -> bool {
        self.ours.iter().any(|ours| same(ours, value))
    }

    fn is_alive(&self) -> bool {
        started(self.pid).is_ok_and(|start| start == self.start)
    }
}

/// The id of this boot.
pub(crate) fn boot() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(PATH).context(format!("read {PATH}"))?.trim().to_owned())
}

/// The journals of a directory. What is left of unfinished ones is removed.
pub(crate) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let listing = format!("list {}", dir.display());
    let mut journals = Vec::new();
    for entry in fs::read_dir(dir).context(&listing)? {
        let path = entry.context(&listing)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(SUFFIX) {
            journals.push(path);
        } else if name.contains(SUFFIX) && name.ends_with(NEW) {
            sweep(&path);
        }
    }
    journals.sort();
    Ok(journals)
}

/// Looks at a journal, and locks it if nobody has.
pub(crate) fn open(path: &Path) -> Result<Found> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let mut lock = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Gone),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
            return Ok(Found::Damaged("it is a symbolic link".to_owned()));
        }
        Err(error) => return Err(Error::io(format!("open {}", path.display()), error)),
    };
    let locked = match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => true,
        Err(Errno::WOULDBLOCK) => false,
        Err(error) => return Err(Error::io(format!("lock {}", path.display()), error)),
    };
    if locked && !has_name(&lock, path) {
        // Its successor has the name by now, or it was removed.
        return match path.exists() {
            true => open(path),
            false => Ok(Found::Gone),
        };
    }
    let record = match read(&mut lock, path) {
        Ok(record) => record,
        Err(trouble) => return Ok(Found::Damaged(trouble)),
    };
    Ok(match locked {
        true => Found::Left(Journal { path: path.to_owned(), lock, record }),
        false => Found::InUse(record),
    })
}

pub(crate) fn damaged(path: &Path, trouble: &str) -> Error {
    let path = path.display();
    let message = format!("the journal {path} is damaged, {trouble}: look at it, and remove it");
    Error::new(ErrorKind::Malformed, message)
}

fn read(file: &mut File, path: &Path) -> Result<Record, String> {
    let (metadata, mut text) = (file.metadata().map_err(|e| e.to_string())?, String::new());
    if !metadata.is_file() || metadata.len() > MAX_JOURNAL {
        return Err("it is not a file of a journal's size".to_owned());
    }
    file.take(MAX_JOURNAL).read_to_string(&mut text).map_err(|e| e.to_string())?;
    let record: Record = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let name = record.file_name();
    match path.file_name() {
        _ if record.schema != SCHEMA => Err(format!("its schema is {}", record.schema)),
        Some(found) if *found == *name => Ok(record),
        _ => Err("its name is not that of its setting".to_owned()),
    }
}

/// Writes a journal that takes the name `path` when it is complete and locked.
fn write(path: &Path, record: &Record, how: RenameFlags) -> Result<File, Errno> {
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}-{:?}{NEW}", std::process::id(), thread::current().id()));
    let new = Path::new(&new);
    let text = serde_json::to_string(record).map_err(|_| Errno::INVAL)?;
    let written = (|| {
        // What is there already is an earlier process's with our id.
        let mut options = OpenOptions::new();
        // Emptied only once it is ours.
        let mut file = options.write(true).create(true).truncate(false).mode(0o600).open(new)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        renameat_with(CWD, new, CWD, path, how)?;
        Ok(file)
    })();
    written.map_err(|error: io::Error| {
        // It may be there or not.
        let _ = fs::remove_file(new);
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

fn cannot_write(path: &Path, error: Errno) -> Error {
    let path = path.display();
    Error::io(format!("cannot write the journal {path}, so nothing is changed"), error)
}

/// Removes a file that somebody was killed while writing.
fn sweep(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    let changed = file.metadata().and_then(|metadata| metadata.modified());
    let age = changed.ok().and_then(|changed| SystemTime::now().duration_since(changed).ok());
    if age.is_some_and(|age| age > ABANDONED)
        && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        && has_name(&file, path)
    {
        // Another look may have removed it.
        let _ = fs::remove_file(path);
    }
}

fn has_name(file: &File, path: &Path) -> bool {
    let ours = file.metadata().map(|file| (file.dev(), file.ino()));
    let there = fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((ours, there), (Ok(ours), Ok(there)) if ours == there)
}

/// When a process started, in ticks since the boot: field 22 of its stat.
fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Its name may have spaces and brackets, and is the second field.
    let after_name = stat.rsplit_once(')').map(|(_, after)| after).unwrap_or_default();
    let start = after_name.split_ascii_whitespace().nth(19).and_then(|start| start.parse().ok());
    start.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

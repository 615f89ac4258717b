//! What can be set for a while and set back: a knob of a running process, or a setting of the host.
//!
//! ```no_run
//! use std::time::Duration;
//! use cachelane_knobs::Subject;
//!
//! let subject = Subject::find("sysctl:net.core.skb_defer_max", None)?;
//! let mut held = subject.hold("trial, pid 123", Duration::from_secs(10))?;
//! held.set("0")?;
//! held.renew()?;
//! held.restore()?;
//! # Ok::<(), cachelane_knobs::Error>(())
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Context as _;
use crate::journal::Journal;
use crate::setting::same;
use crate::{
    Client, DEFAULT_TIMEOUT, Error, ErrorKind, Exposure, KnobInfo, Listing, Process, Reach, Result,
    Search, Select, Setting, Values, ask_each, runtime_dir, search, search_in,
};

/// What can be held: a knob of one running process, or a setting of the host.
#[derive(Clone, Debug)]
pub struct Subject {
    name: String,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Knob(Process, Box<KnobInfo>),
    /// With the directory of its journal.
    Setting(Setting, PathBuf),
}

impl Subject {
    /// Finds what a name means: `sysctl:NAME`, `file:PATH`, or a knob such as `relay.engine`, of
    /// the process that is meant where several have it.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownKnob`], naming those that there are; [`ErrorKind::BadSubject`] where
    /// several processes have the knob, naming them, and where a name makes no sense;
    /// [`ErrorKind::NoSetting`] and [`ErrorKind::NotPermitted`] where a setting cannot be read and
    /// written; and as for [`Client::list`].
    pub fn find(name: &str, select: impl Into<Select>) -> Result<Self> {
        Self::find_by(name, &select.into(), search, &runtime_dir())
    }

    /// As [`find`](Self::find), with a runtime directory of the caller's choice.
    ///
    /// # Errors
    /// As for [`find`](Self::find).
    pub fn find_in(name: &str, select: impl Into<Select>, dir: &Path) -> Result<Self> {
        Self::find_by(name, &select.into(), || search_in(dir), dir)
    }

    fn find_by(
        name: &str,
        select: &Select,
        search: impl FnOnce() -> Result<Search>,
        dir: &Path,
    ) -> Result<Self> {
        let what = if !name.contains(':') {
            let (process, info) = find_knob(name, select, search()?)?;
            What::Knob(process, Box::new(info))
        } else if !select.is_any() {
            let message = format!("{name} is a setting of the host, not of a process {select}");
            return Err(Error::new(ErrorKind::BadSubject, message));
        } else {
            let setting: Setting = name.parse()?;
            setting.check()?;
            What::Setting(setting, dir.to_owned())
        };
        Ok(Self { name: name.to_owned(), what })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process whose knob it is; none for a setting of the host.
    pub fn process(&self) -> Option<&Process> {
        match &self.what {
            What::Knob(process, _) => Some(process),
            What::Setting(..) => None,
        }
    }

    /// The knob that it is, of one process, as that was listed.
    pub fn of_knob(process: Process, info: KnobInfo) -> Self {
        Self { name: info.name.clone(), what: What::Knob(process, Box::new(info)) }
    }

    /// What it takes; none for a setting of the host, of which only the kernel knows.
    pub fn values(&self) -> Option<&Values> {
        match &self.what {
            What::Knob(_, info) => Some(&info.values),
            What::Setting(..) => None,
        }
    }

    /// What a new value reaches; of a setting of the host, nobody has said.
    pub fn reach(&self) -> Reach {
        match &self.what {
            What::Knob(_, info) => info.reach,
            What::Setting(..) => Reach::Unknown,
        }
    }

    /// The counters of its [`process`](Self::process) that tell which share of the work runs under
    /// the present value; none of a setting of the host, or where all work does at once.
    pub fn exposure(&self) -> Option<&Exposure> {
        match &self.what {
            What::Knob(_, info) => info.exposure.as_ref(),
            What::Setting(..) => None,
        }
    }

    /// Takes it for the caller alone. `holder` says in a few words who that is, such as
    /// `trial, pid 123`: others who want to set it are told.
    ///
    /// A knob is held for `lasts` (at most [`MAX_HOLD`](crate::MAX_HOLD)) and has to be renewed:
    /// if it is not, its process puts it back. A setting of the host is held as long as this
    /// process lives; if that is killed, [`undo`](crate::undo()) restores the setting.
    ///
    /// # Errors
    /// [`ErrorKind::Held`] if somebody else holds it; [`ErrorKind::Gone`],
    /// [`ErrorKind::NoSetting`], [`ErrorKind::NotPermitted`]; [`ErrorKind::BadValue`] for the time
    /// or the text.
    pub fn hold(&self, holder: &str, lasts: Duration) -> Result<Held> {
        let (before, how) = match &self.what {
            What::Knob(process, _) => {
                let mut client = process.connect_timeout(DEFAULT_TIMEOUT)?;
                let token = token()?;
                let before = client.hold(&self.name, &token, holder, lasts)?;
                (before, How::Knob { client, token, lasts })
            }
            What::Setting(setting, dir) => {
                let mut journal = Box::new(Journal::claim(dir, setting)?);
                let begun = setting.read().and_then(|before| {
                    journal.begin(&before)?;
                    Ok(before)
                });
                match begun {
                    Ok(before) => {
                        let (setting, last) = (setting.clone(), before.clone());
                        (before, How::Setting { setting, journal, last })
                    }
                    Err(error) => {
                        journal.remove()?;
                        return Err(error);
                    }
                }
            }
        };
        Ok(Held { name: self.name.clone(), before, how, is_over: false })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A knob or a setting that the caller holds. Dropping it restores the value before.
#[derive(Debug)]
pub struct Held {
    name: String,
    before: String,
    how: How,
    /// There is nothing to restore any more.
    is_over: bool,
}

#[derive(Debug)]
enum How {
    Knob {
        client: Client,
        token: String,
        lasts: Duration,
    },
    Setting {
        setting: Setting,
        journal: Box<Journal>,
        /// The value in force if nobody else has changed it.
        last: String,
    },
}

impl Held {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value before it was held.
    pub fn before(&self) -> &str {
        &self.before
    }

    /// The value in force now, whoever set it.
    ///
    /// # Errors
    /// As for [`Client::get`] or [`Setting::read`].
    pub fn value(&mut self) -> Result<String> {
        match &mut self.how {
            How::Knob { client, .. } => client.get(&self.name),
            How::Setting { setting, .. } => setting.read(),
        }
    }

    /// Sets it; the value that is then in force. Of a knob, this does not renew the hold.
    ///
    /// # Errors
    /// [`ErrorKind::NotHeld`] if the hold on a knob has ended, and [`ErrorKind::Changed`] if
    /// somebody else has changed a setting: then nothing is set. [`ErrorKind::BadValue`] for a
    /// value that it does not take, or of which the kernel makes another one: then it is as it was.
    pub fn set(&mut self, value: &str) -> Result<String> {
        match &mut self.how {
            How::Knob { client, token, .. } => client.set_held(&self.name, value, token),
            How::Setting { setting, journal, last } => {
                check_last(setting, last)?;
                set_setting(setting, journal, last, value)
            }
        }
    }

    /// Says that the holder lives: a knob is held for the time given at first from now on. Of a
    /// setting of the host, this checks that nobody else has changed it.
    ///
    /// # Errors
    /// [`ErrorKind::NotHeld`], [`ErrorKind::Changed`], and as for [`value`](Self::value).
    pub fn renew(&mut self) -> Result<()> {
        match &mut self.how {
            How::Knob { client, token, lasts } => client.renew(&self.name, token, *lasts).map(drop),
            How::Setting { setting, last, .. } => check_last(setting, last),
        }
    }

    /// Restores the value before and ends the hold.
    ///
    /// # Errors
    /// [`ErrorKind::Changed`] and [`ErrorKind::NotHeld`] if somebody else has set it, which is left
    /// as it is, or if the process has restored it already. Whatever else keeps it from being set:
    /// the process then tries again, or `cachelane undo` restores it.
    pub fn restore(mut self) -> Result<()> {
        self.end(false)
    }

    /// Ends the hold and leaves the value as it is.
    ///
    /// # Errors
    /// As for [`restore`](Self::restore).
    pub fn keep(mut self) -> Result<()> {
        self.end(true)
    }

    fn end(&mut self, keep: bool) -> Result<()> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        match &mut self.how {
            How::Knob { client, token, .. } => {
                let now = client.release(&self.name, token, keep)?;
                match keep || now == self.before {
                    true => Ok(()),
                    false => Err(changed(&self.name, &now, &self.before)),
                }
            }
            How::Setting { setting, journal, last } => {
                // Of a write that could not be read back nobody knows what the kernel made of it.
                let is_known = journal.record.writing.is_none();
                let ours = is_known.then_some(last.as_str());
                let restored = match keep {
                    true => Ok(()),
                    false => restore_setting(setting, ours, &self.before),
                };
                let is_settled = restored.as_ref().map_or_else(
                    |e| matches!(e.kind(), ErrorKind::Changed | ErrorKind::NoSetting),
                    |()| true,
                );
                if !is_settled {
                    return restored.map_err(|error| {
                        let message =
                            format!("{error}; once it can be, cachelane undo restores it");
                        Error::new(error.kind(), message)
                    });
                }
                journal.remove()?;
                restored
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(error) = self.end(false) {
            tracing::warn!("{error}");
        }
    }
}

fn check_last(setting: &Setting, last: &str) -> Result<()> {
    let now = setting.read()?;
    if same(&now, last) { Ok(()) } else { Err(changed(setting.name(), &now, last)) }
}

fn set_setting(
    setting: &Setting,
    journal: &mut Journal,
    last: &mut String,
    value: &str,
) -> Result<String> {
    journal.writing(value)?;
    let now = match setting.write(value) {
        Ok(now) => now,
        Err(error) => {
            if check_last(setting, last).is_ok() {
                journal.written(None)?;
            }
            return Err(error);
        }
    };
    if !same(&now, value) && same(&setting.write(value)?, value) {
        // The kernel takes it, so somebody else was between the write and the look at it.
        *last = value.to_owned();
        journal.written(Some(value))?;
        setting.write(&now)?;
        return Err(changed(setting.name(), &now, value));
    }
    let previous = std::mem::replace(last, now.clone());
    journal.written(Some(&now))?;
    if same(&now, value) {
        return Ok(now);
    }
    *last = setting.write(&previous)?;
    let message =
        format!("{setting} does not take {value:?} as it is: the kernel makes it {now:?}");
    Err(Error::new(ErrorKind::BadValue, message))
}

/// `ours` is the only value that may be overwritten; without it, any may.
fn restore_setting(setting: &Setting, ours: Option<&str>, before: &str) -> Result<()> {
    let now = setting.read()?;
    if same(&now, before) {
        return Ok(());
    }
    if let Some(ours) = ours.filter(|ours| !same(&now, ours)) {
        return Err(changed(setting.name(), &now, ours));
    }
    let now = setting.write(before)?;
    if same(&now, before) {
        return Ok(());
    }
    let message = format!("{setting} is not {before:?} again: the kernel makes it {now:?}");
    Err(Error::new(ErrorKind::Io, message))
}

/// Those that do not answer have no knob to offer; the others may.
fn find_knob(name: &str, select: &Select, found: Search) -> Result<(Process, KnobInfo)> {
    let mut processes = found.processes.clone();
    processes.retain(|process| select.may_be(process));
    let listings = ask_each(&processes, |process| process.connect()?.listing());
    let (mut having, mut known, mut silent) = (Vec::new(), BTreeSet::new(), Vec::new());
    for (process, listing) in processes.into_iter().zip(listings) {
        match listing {
            Ok(Listing { name: called, knobs }) if select.is_name(&called) => {
                known.extend(knobs.iter().map(|info| info.name.clone()));
                let info = knobs.into_iter().find(|info| info.name == name);
                having.extend(info.map(|info| (called, process, info)));
            }
            Err(error) if error.kind() != ErrorKind::Gone => silent.push((process, error)),
            _ => {}
        }
    }
    if having.len() > 1 {
        let label = |(called, process, _): &(String, Process, _)| {
            format!("'{called}' (pid {})", process.pid)
        };
        let processes = Vec::from_iter(having.iter().map(label)).join(", ");
        let message = format!("knob {name} is in {processes}: choose one with --name or --pid");
        return Err(Error::new(ErrorKind::BadSubject, message));
    }
    if let Some((_, process, info)) = having.pop() {
        return Ok((process, info));
    }
    if let Some((process, error)) = silent.into_iter().next() {
        let message =
            format!("knob {name:?}: {} is not known to have it: {error}", process.label());
        return Err(Error::new(error.kind(), message));
    }
    if known.is_empty() {
        let message = format!("knob {name:?}: {}", found.none(select));
        return Err(Error::new(ErrorKind::UnknownKnob, message));
    }
    let known = Vec::from_iter(known).join(", ");
    let message = format!("no process that runs has a knob {name:?} (knobs: {known})");
    Err(Error::new(ErrorKind::UnknownKnob, message))
}

/// What nobody else can hit upon.
fn token() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/uuid";
    Ok(std::fs::read_to_string(PATH).context(format!("read {PATH}"))?.trim().to_owned())
}

fn changed(name: &str, now: &str, ours: &str) -> Error {
    let message = format!(
        "{name} is {now:?}: somebody else has changed it from {ours:?}, and it \
                           is left as it is"
    );
    Error::new(ErrorKind::Changed, message)
}

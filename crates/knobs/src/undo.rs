//! Restoring what dead processes left changed.

use std::path::Path;

use serde::Serialize;

use crate::journal::{self, Found, Journal, Record};
use crate::runtime_dir::{check, runtime_dir};
use crate::setting::same;
use crate::{Error, ErrorKind, Result, Setting};

/// What became of one setting that a process had changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Undone {
    /// Such as `sysctl:net.core.somaxconn`; the journal's path where that is damaged.
    pub setting: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The value that was found, if one was.
    pub value: Option<String>,
    /// The value before the change, if the process had come that far.
    pub before: Option<String>,
    /// Why it was not restored, in a few words.
    pub reason: Option<String>,
}

/// What [`undo`] did about a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// It has the value before again; in a dry run, it would have.
    Restored,
    /// It had the value before.
    Unchanged,
    /// Somebody else has changed it since; it is left alone, and its journal removed.
    Changed,
    /// The file, or the boot, or the network namespace, is gone, and the setting with it.
    Gone,
    /// A process that lives has it.
    InUse,
    /// It is of another network namespace, and can be restored only there.
    Elsewhere,
    /// It could not be restored; its journal stays.
    Failed,
    /// The journal makes no sense, and stays.
    Damaged,
}

/// Restores the settings that dead processes of this user left changed, where the value is still
/// theirs. Settings that processes in life have are left to them. With `dry_run`, nothing is
/// changed.
///
/// # Errors
/// [`ErrorKind::NotPermitted`] where others could have written the journals; [`ErrorKind::Io`]
/// where they cannot be read. What goes wrong with one setting is in its [`Undone`].
pub fn undo(dry_run: bool) -> Result<Vec<Undone>> {
    undo_in(&runtime_dir(), dry_run)
}

/// As [`undo`], in a directory of the caller's choice.
///
/// # Errors
/// As for [`undo`].
pub fn undo_in(dir: &Path, dry_run: bool) -> Result<Vec<Undone>> {
    if !dir.try_exists().unwrap_or(true) {
        return Ok(Vec::new());
    }
    check(dir)?;
    let mut all = Vec::new();
    for path in journal::list(dir)? {
        all.extend(match journal::open(&path)? {
            Found::Gone => None,
            Found::Left(journal) => Some(settle(journal, dry_run)),
            Found::InUse(record) => {
                let reason = format!("process {} has it, and will restore it", record.pid);
                Some(Undone::of(&record, Outcome::InUse, None, Some(reason)))
            }
            Found::Damaged(trouble) => Some(Undone::damaged(&path, &trouble)),
        });
    }
    Ok(all)
}

/// Restores what one journal of a dead process says, and removes the journal if it is done with.
pub(crate) fn settle(journal: Journal, dry_run: bool) -> Undone {
    let undone = match restore(&journal.record, dry_run) {
        Ok(undone) => undone,
        Err(error) => {
            let outcome = match error.kind() {
                ErrorKind::NoSetting => Outcome::Gone,
                _ => Outcome::Failed,
            };
            Undone::of(&journal.record, outcome, None, Some(error.to_string()))
        }
    };
    if dry_run || undone.outcome.keeps_journal() {
        return undone;
    }
    match journal.remove() {
        Ok(()) => undone,
        Err(error) => {
            Undone { outcome: Outcome::Failed, reason: Some(error.to_string()), ..undone }
        }
    }
}

fn restore(record: &Record, dry_run: bool) -> Result<Undone> {
    let of = |outcome, value: Option<&str>, reason: Option<&str>| {
        let (value, reason) = (value.map(str::to_owned), reason.map(str::to_owned));
        Ok(Undone::of(record, outcome, value, reason))
    };
    if record.boot != journal::boot()? {
        return of(Outcome::Gone, None, Some("the machine has started anew since"));
    }
    let Some(before) = &record.before else {
        return of(Outcome::Unchanged, None, Some("nothing had been written yet"));
    };
    let setting: Setting = record.setting.parse()?;
    let then = record.identity();
    let is_found = match setting.identity() {
        Ok(now) => now.key() == then.key(),
        Err(error) if error.kind() == ErrorKind::NoSetting => false,
        Err(error) => return Err(error),
    };
    if !is_found && then.is_elsewhere() {
        let reason = format!(
            "it is of the network namespace net:[{}]: run cachelane undo there, such as by nsenter \
             or ip netns exec",
            then.namespace
        );
        return of(Outcome::Elsewhere, None, Some(&reason));
    }
    if !is_found {
        let reason = format!("{} is there no more", then.path.display());
        return of(Outcome::Gone, None, Some(&reason));
    }
    let value = setting.read()?;
    if same(&value, before) {
        return of(Outcome::Unchanged, Some(&value), None);
    }
    if !record.has(&value) && record.writing.is_none() {
        let reason = "somebody else has changed it since, so it is left alone";
        return of(Outcome::Changed, Some(&value), Some(reason));
    }
    if !dry_run {
        let now = setting.write(before)?;
        if !same(&now, before) {
            let reason = format!("the kernel made {now:?} of {before:?}");
            return of(Outcome::Failed, Some(&now), Some(&reason));
        }
    }
    of(Outcome::Restored, Some(&value), None)
}

impl Undone {
    fn of(
        record: &Record,
        outcome: Outcome,
        value: Option<String>,
        reason: Option<String>,
    ) -> Self {
        let (setting, before) = (record.setting.clone(), record.before.clone());
        Self { setting, outcome, value, before, reason }
    }

    fn damaged(path: &Path, trouble: &str) -> Self {
        Self {
            setting: path.display().to_string(),
            outcome: Outcome::Damaged,
            value: None,
            before: None,
            reason: Some(journal::damaged(path, trouble).to_string()),
        }
    }

    /// Whether somebody has to look at it: the value is not what it was before, or nobody knows.
    pub fn is_trouble(&self) -> bool {
        match self.outcome {
            Outcome::Restored | Outcome::Unchanged | Outcome::Gone | Outcome::InUse => false,
            Outcome::Changed | Outcome::Elsewhere | Outcome::Failed | Outcome::Damaged => true,
        }
    }

    /// Why the setting cannot be had now, if it cannot.
    pub(crate) fn trouble(&self) -> Option<Error> {
        let message = || format!("what an earlier process left cannot be restored: {self}");
        self.outcome.keeps_journal().then(|| Error::new(ErrorKind::Held, message()))
    }

    /// Says it in the log, in one line; what is not for this process to restore, quietly.
    pub fn log(&self) {
        match self.outcome {
            Outcome::InUse | Outcome::Elsewhere => tracing::debug!("{self}"),
            _ if self.is_trouble() => tracing::warn!("{self}"),
            _ => tracing::info!("{self}"),
        }
    }
}

impl Outcome {
    fn keeps_journal(self) -> bool {
        matches!(self, Self::InUse | Self::Elsewhere | Self::Failed | Self::Damaged)
    }
}

impl std::fmt::Display for Undone {
    /// Such as `sysctl:net.core.somaxconn: restored to 4096 (it was 8192)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.outcome != Outcome::Damaged {
            write!(f, "{}: ", self.setting)?;
        }
        let (value, before) = (self.value.as_deref(), self.before.as_deref());
        let (value, before) = (value.unwrap_or("unknown"), before.unwrap_or("unknown"));
        match self.outcome {
            Outcome::Restored => write!(f, "restored to {before} (it was {value})")?,
            Outcome::Unchanged => write!(f, "as it was before")?,
            Outcome::Changed => write!(f, "left at {value} (it was {before} before)")?,
            Outcome::Gone => write!(f, "nothing to restore")?,
            Outcome::InUse => write!(f, "in use")?,
            Outcome::Elsewhere | Outcome::Failed => {
                write!(f, "not restored to {before}")?;
            }
            Outcome::Damaged => {}
        }
        match &self.reason {
            Some(reason) if self.outcome == Outcome::Damaged => f.write_str(reason),
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

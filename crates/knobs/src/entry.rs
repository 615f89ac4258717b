//! One knob of a registry, and who holds it.
//!
//! # Holds
//!
//! A **hold** keeps a knob for somebody for a time that has to be renewed. It belongs to whoever
//! knows its token, not to a connection: a client may lose its connection and come back. While it
//! lasts, nobody else can set the knob, unless by force, which ends the hold. However it ends, the
//! knob goes back to what it was before, with two exceptions: its holder asked for it to stay, or
//! its value is none that the holder set.
//!
//! A hold also runs out: [`Entry::tend`] ends it when its time is over, so a holder that was
//! killed, stopped or starved leaves the knob as it found it. Nothing else looks at the time, and the
//! server tends after it has answered what waited: a renewal that came in time counts, however long
//! another knob's setter kept it waiting. What the holder's own setter takes is added to its hold,
//! because the holder waits for the answer. A setter that fails when a hold runs out is tried again,
//! and until that succeeds or is given up, the knob is free for [`Entry::set`] but not for another
//! hold, whose value before would be wrong.
//!
//! # Locks
//!
//! `setting` is held by whoever sets the knob or changes the hold, also while the setter runs.
//! `slot` is taken for moments only, so that who lists the knobs never waits for a setter. Whoever
//! holds `setting` may take `slot`, never the other way round.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::knob::HoldInfo;
use crate::{Error, ErrorKind, Knob, KnobInfo, Result};

/// The longest hold without a renewal. A knob is not kept from its administrator for longer by
/// somebody who has stopped.
pub const MAX_HOLD: Duration = Duration::from_secs(60);

/// The longest text for who holds a knob, in bytes.
const MAX_HOLDER: usize = 80;

/// How often a setter is tried again that fails when a hold ends.
const RETRIES: u32 = 5;

/// The pause before the first of these; each next one is twice as long.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// When to look again at a knob whose setter is running.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// A knob, and who holds it.
pub(crate) struct Entry {
    pub(crate) knob: Knob,
    /// The locks guard no data that a setter that panics could leave half done.
    setting: Mutex<()>,
    slot: Mutex<Slot>,
}

/// Who sets a knob.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By<'a> {
    /// Somebody without a hold.
    Anybody,
    /// Somebody who ends another's hold.
    Force,
    /// The holder with this token.
    Holder(&'a str),
}

#[derive(Default)]
struct Slot {
    hold: Option<Hold>,
    /// The last hold's token and how it ended, for a holder who comes too late.
    ended: Option<(String, Ended)>,
}

#[derive(Clone)]
struct Hold {
    token: String,
    holder: String,
    /// When it runs out; once it has failed to end, when that is tried again.
    until: Instant,
    before: String,
    /// What the holder has set: as asked for, and as read back.
    set: Vec<String>,
    /// How often the setter has failed since the hold's end.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Released,
    RanOut,
    Forced,
}

impl Entry {
    pub(crate) fn new(knob: Knob) -> Self {
        Self { knob, setting: Mutex::new(()), slot: Mutex::default() }
    }

    /// The knob as others see it.
    pub(crate) fn info(&self) -> KnobInfo {
        let held = self.slot.lock().hold.as_ref().map(|hold| HoldInfo {
            holder: hold.holder.clone(),
            left_ms: left(hold).as_millis() as u64,
            before: hold.before.clone(),
        });
        self.knob.info(held)
    }

    /// Sets the knob, where a value is given only if the knob has that; the value then in force.
    pub(crate) fn set(&self, value: &str, by: By<'_>, only_if: Option<&str>) -> Result<String> {
        self.knob.check(value)?;
        let _one_at_a_time = self.setting.lock();
        match by {
            By::Anybody => self.check_free()?,
            By::Holder(token) => self.check_held(token)?,
            By::Force => {}
        }
        self.check_is(only_if)?;
        if let (By::Holder(_), Some(hold)) = (by, &mut self.slot.lock().hold) {
            // Before it is set: a setter that panics may have set it.
            note(&mut hold.set, value);
        }
        let began = Instant::now();
        let applied = self.apply(value);
        let now = applied.and_then(|()| {
            let now = self.knob.value();
            if !matches!(by, By::Holder(_)) {
                self.end(Ended::Forced);
            }
            now
        });
        if let (By::Holder(_), Some(hold)) = (by, &mut self.slot.lock().hold) {
            now.iter().for_each(|now| note(&mut hold.set, now));
            hold.until += began.elapsed();
        }
        let now = now?;
        tracing::info!(knob = self.knob.name, value = now, "knob set");
        Ok(now)
    }

    /// Holds the knob from now on for `lasts`, or goes on holding it if the token is the holder's:
    /// a client asks again when its connection was lost. The value before.
    pub(crate) fn hold(&self, token: &str, holder: &str, lasts: Duration) -> Result<String> {
        check_holder(holder)?;
        let lasts = check_time(lasts)?;
        let _one_at_a_time = self.setting.lock();
        let until = Instant::now() + lasts;
        if let Some(hold) = &mut self.slot.lock().hold {
            if hold.token != token || hold.failures > 0 {
                return Err(self.held_by(hold));
            }
            hold.until = until;
            return Ok(hold.before.clone());
        }
        let before = self.knob.value()?;
        tracing::info!(knob = self.knob.name, holder, value = before, "knob held");
        self.slot.lock().hold = Some(Hold {
            token: token.to_owned(),
            holder: holder.to_owned(),
            until,
            before: before.clone(),
            set: Vec::new(),
            failures: 0,
        });
        Ok(before)
    }

    /// Lets the hold last for `lasts` from now on; the present value.
    pub(crate) fn renew(&self, token: &str, lasts: Duration) -> Result<String> {
        let lasts = check_time(lasts)?;
        let _one_at_a_time = self.setting.lock();
        self.check_held(token)?;
        if let Some(hold) = &mut self.slot.lock().hold {
            hold.until = Instant::now() + lasts;
        }
        self.knob.value()
    }

    /// Ends the hold, and puts the knob back unless it is to stay as it is; the value then in
    /// force.
    pub(crate) fn release(&self, token: &str, keep: bool) -> Result<String> {
        let _one_at_a_time = self.setting.lock();
        if self
            .slot
            .lock()
            .ended
            .as_ref()
            .is_some_and(|(last, ended)| last == token && *ended == Ended::Released)
        {
            // Asked for twice, for the first answer was lost.
            return self.knob.value();
        }
        self.check_held(token)?;
        if !keep {
            self.restore(Instant::now(), Ended::Released)?;
        }
        self.end(Ended::Released);
        self.knob.value()
    }

    /// Ends the hold if its time was over at `now`. When to look again, if there is one.
    pub(crate) fn tend(&self, now: Instant) -> Option<Instant> {
        let until = self.slot.lock().hold.as_ref()?.until;
        if until > now {
            return Some(until);
        }
        let Some(_one_at_a_time) = self.setting.try_lock() else { return Some(now + BUSY_PAUSE) };
        self.end_if_due(now);
        self.slot.lock().hold.as_ref().map(|hold| hold.until)
    }

    /// Ends the hold at once and for good: nobody will look after it any more.
    pub(crate) fn abandon(&self) {
        let _one_at_a_time = self.setting.lock();
        if self.slot.lock().hold.is_some() {
            // It has said why, if it failed.
            let _ = self.restore(Instant::now(), Ended::RanOut);
            self.end(Ended::RanOut);
        }
    }

    /// The hold is over, whatever becomes of the value. With `setting` held.
    fn end(&self, how: Ended) {
        let mut slot = self.slot.lock();
        if let Some(hold) = slot.hold.take() {
            slot.ended = Some((hold.token, how));
        }
    }

    /// Ends the hold if its time is over. With `setting` held.
    fn end_if_due(&self, now: Instant) {
        let hold = self.slot.lock().hold.clone();
        let Some(hold) = hold.filter(|hold| hold.until <= now) else { return };
        if hold.failures == 0 {
            let (knob, holder) = (&self.knob.name, &hold.holder);
            tracing::warn!(knob, holder, "the hold ran out: its holder did not renew it");
        }
        if self.restore(now, Ended::RanOut).is_ok() {
            self.end(Ended::RanOut);
        }
    }

    /// Puts the knob back to what it was before the hold, if its value is the holder's. On failure
    /// the hold is over for its holder and is ended later, until it has failed too often. With
    /// `setting` held.
    fn restore(&self, now: Instant, how: Ended) -> Result<()> {
        let Some(Hold { before, set, failures, .. }) = self.slot.lock().hold.clone() else {
            return Ok(());
        };
        let knob = &self.knob.name;
        let value = self.guarded(|| self.knob.value());
        match &value {
            _ if set.is_empty() => return Ok(()),
            Ok(value) if *value == before => return Ok(()),
            Ok(value) if !set.contains(value) => {
                tracing::warn!(knob, value, before, "left alone: it is not what the holder set");
                return Ok(());
            }
            // One that cannot be read is set all the same: who held it kept others from it.
            _ => {}
        }
        let Err(error) = self.guarded(|| self.apply(&before)) else {
            tracing::info!(knob, value = before, "knob as it was before it was held");
            return Ok(());
        };
        let mut slot = self.slot.lock();
        if failures == RETRIES {
            tracing::error!(
                knob,
                %error,
                "given up: set it by hand, with cachelane knob set {knob} '{before}'"
            );
            drop(slot);
            self.end(how);
        } else if let Some(hold) = &mut slot.hold {
            tracing::warn!(knob, %error, "not yet as it was before it was held; tried again");
            hold.failures = failures + 1;
            hold.until = now + RETRY_PAUSE * 2_u32.pow(failures);
        }
        let message =
            format!("knob {knob} is not yet {before:?} again, as it was before it was held");
        Err(Error::new(error.kind(), format!("{message}, which is tried again: {error}")))
    }

    fn apply(&self, value: &str) -> Result<()> {
        (self.knob.set)(value).map_err(|trouble| self.knob.refuse(value, Some(&trouble)))
    }

    /// Calls the knob's own code where nobody above could say that it panicked.
    fn guarded<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
            let message = format!("knob {} panicked; the log has the reason", self.knob.name);
            Err(Error::new(ErrorKind::Internal, message))
        })
    }

    /// Refuses a set by somebody else while the knob is held. One that is being put back is free.
    fn check_free(&self) -> Result<()> {
        match &self.slot.lock().hold {
            Some(hold) if hold.failures == 0 => Err(self.held_by(hold)),
            _ => Ok(()),
        }
    }

    /// Refuses a set of a knob that has another value than it was thought to have.
    fn check_is(&self, expected: Option<&str>) -> Result<()> {
        let Some(expected) = expected else { return Ok(()) };
        let now = self.knob.value()?;
        if now == expected {
            return Ok(());
        }
        let message =
            format!("knob {} is {now:?}, not {expected:?}, so it is left as it is", self.knob.name);
        Err(Error::new(ErrorKind::Changed, message))
    }

    /// Refuses a holder whose hold has ended, and says why it has.
    fn check_held(&self, token: &str) -> Result<()> {
        let slot = self.slot.lock();
        if slot.hold.as_ref().is_some_and(|hold| hold.token == token && hold.failures == 0) {
            return Ok(());
        }
        let putting_back = slot.hold.as_ref().filter(|hold| hold.token == token);
        let why = match &slot.ended {
            _ if putting_back.is_some() => "the value before is being put back",
            Some((last, Ended::RanOut)) if last == token => {
                "it was not renewed in time, and the process has put the value before back"
            }
            Some((last, Ended::Forced)) if last == token => {
                "somebody else set the knob by force, and it stays as it was set"
            }
            Some((last, Ended::Released)) if last == token => "it was released",
            _ => "the process knows no such hold",
        };
        let message = format!("the hold on knob {} has ended: {why}", self.knob.name);
        Err(Error::new(ErrorKind::NotHeld, message))
    }

    fn held_by(&self, hold: &Hold) -> Error {
        let (name, holder) = (&self.knob.name, &hold.holder);
        let seconds = left(hold).as_secs_f64();
        let message = match hold.failures {
            0 => format!(
                "knob {name} is held by {holder}, for {seconds:.1} s and longer if it renews: wait \
                 for its end, or end it with cachelane knob set --force"
            ),
            _ => format!(
                "knob {name} is being put back to {:?} after it was held by {holder}, which is \
                 tried again in {seconds:.1} s: wait, or set it",
                hold.before
            ),
        };
        Error::new(ErrorKind::Held, message)
    }
}

fn left(hold: &Hold) -> Duration {
    hold.until.saturating_duration_since(Instant::now())
}

fn note(set: &mut Vec<String>, value: &str) {
    if !set.iter().any(|known| known == value) {
        set.push(value.to_owned());
    }
}

fn check_time(lasts: Duration) -> Result<Duration> {
    if lasts.is_zero() || lasts > MAX_HOLD {
        let (ms, most) = (lasts.as_millis(), MAX_HOLD.as_millis());
        let message = format!("a hold cannot last {ms} ms (expected 1 to {most})");
        return Err(Error::new(ErrorKind::BadValue, message));
    }
    Ok(lasts)
}

/// It is shown on terminals and in logs.
fn check_holder(holder: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    if (1..=MAX_HOLDER).contains(&holder.len()) && holder.bytes().all(fits) {
        return Ok(());
    }
    let message =
        format!("holder {holder:?}: expected 1 to {MAX_HOLDER} printable ASCII characters");
    Err(Error::new(ErrorKind::BadValue, message))
}

#[cfg(test)]
mod tests;

//! Asking all processes at once, and telling which of them is meant.

use std::collections::BTreeSet;

use anyhow::bail;
use knobs::{ErrorKind, KnobInfo, Process, Reading, Search, Select, ask_each, search};
use rustix::process::geteuid;
use serde_json::{Value, json};

use super::eprint_line;
use crate::exit::Exit;

/// A process that has answered.
pub(super) struct Answered {
    pub(super) process: Process,
    pub(super) name: String,
    pub(super) knobs: Vec<KnobInfo>,
    pub(super) counters: Vec<Reading>,
}

/// A process that has not, and why.
pub(super) struct Silent {
    pub(super) process: Process,
    error: knobs::Error,
}

/// What came of asking.
pub(super) struct Everyone {
    pub(super) answered: Vec<Answered>,
    pub(super) silent: Vec<Silent>,
    pub(super) search: Search,
    pub(super) select: Select,
}

impl Everyone {
    /// Asks those that may be meant.
    pub(super) fn ask(select: &Select, counters: bool) -> anyhow::Result<Everyone> {
        let mut search = search()?;
        search.processes.retain(|process| select.may_be(process));
        let answers = ask_each(&search.processes, |process| {
            let mut client = process.connect()?;
            let listing = client.listing()?;
            let counters = if counters { client.counters()? } else { Vec::new() };
            Ok((listing, counters))
        });
        let (mut answered, mut silent) = (Vec::new(), Vec::new());
        for (process, answer) in search.processes.iter().cloned().zip(answers) {
            match answer {
                Ok((listing, counters)) if select.is_name(&listing.name) => {
                    let (name, knobs) = (listing.name, listing.knobs);
                    answered.push(Answered { process, name, knobs, counters });
                }
                // It has ended meanwhile.
                Err(error) if error.kind() == ErrorKind::Gone => {}
                Err(error) => silent.push(Silent { process, error }),
                Ok(_) => {}
            }
        }
        let select = select.clone();
        if !select.is_any() && answered.is_empty() && silent.is_empty() {
            return Err(search.none(&select).into());
        }
        Ok(Everyone { answered, silent, search, select })
    }

    /// Those with a knob of this name, and it.
    pub(super) fn having(&self, knob: &str) -> anyhow::Result<Vec<(&Answered, &KnobInfo)>> {
        let of = |one| move |info: &&KnobInfo| (one, *info).1.name == knob;
        let having: Vec<_> = self
            .answered
            .iter()
            .filter_map(|one| Some((one, one.knobs.iter().find(of(one))?)))
            .collect();
        if !having.is_empty() {
            return Ok(having);
        }
        self.complain(&self.silent)?;
        let known: BTreeSet<_> = self
            .answered
            .iter()
            .flat_map(|one| &one.knobs)
            .map(|info| info.name.as_str())
            .collect();
        if !known.is_empty() {
            let known = Vec::from_iter(known).join(", ");
            bail!("knob '{knob}' is not known to any process that answers (there are {known})");
        }
        match self.silent.is_empty() {
            true => bail!("knob '{knob}': {}", self.search.none(&self.select)),
            false => bail!("knob '{knob}': no process has answered"),
        }
    }

    /// Those of which nobody knows whether they have a knob that these have, but which probably do;
    /// none where it was said which process is meant, and that has answered.
    pub(super) fn silent_like(&self, having: &[(&Answered, &KnobInfo)]) -> Vec<&Silent> {
        let is_like =
            |one: &&Silent| having.iter().any(|(other, _)| other.process.kind == one.process.kind);
        match self.select.is_any() {
            true => self.silent.iter().filter(is_like).collect(),
            false => Vec::new(),
        }
    }

    /// Those that are missing where all are meant: of this user's if nothing says which.
    pub(super) fn silent_of_all(&self) -> Vec<&Silent> {
        let is_meant = |one: &&Silent| !self.select.is_any() || is_own(&one.process);
        self.silent.iter().filter(is_meant).collect()
    }

    /// Says which processes did not answer, and what that means for the exit code.
    pub(super) fn complain<S: std::borrow::Borrow<Silent>>(
        &self,
        silent: &[S],
    ) -> anyhow::Result<Exit> {
        silent.iter().map(S::borrow).for_each(|one| eprint_line(&one.why()));
        Ok(if silent.is_empty() { Exit::Ok } else { Exit::Failed })
    }
}

/// Whether a process is this user's.
pub(super) fn is_own(process: &Process) -> bool {
    process.uid == geteuid().as_raw()
}

impl Answered {
    /// Its name and, if it is another user's, whose it is.
    pub(super) fn shown_name(&self) -> String {
        match is_own(&self.process) {
            true => self.name.clone(),
            false => format!("{} (uid {})", self.name, self.process.uid),
        }
    }

    /// What tells it from others.
    pub(super) fn label(&self) -> String {
        format!("{} (pid {})", self.name, self.process.pid)
    }

    /// As programs see it.
    pub(super) fn object(&self, more: Value) -> Value {
        let Process { kind, pid, uid, .. } = &self.process;
        let mut object = json!({"process": kind, "name": self.name, "pid": pid, "uid": uid});
        if let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) {
            object.extend(more);
        }
        object
    }
}

impl Silent {
    /// Why it has not answered.
    pub(super) fn why(&self) -> String {
        let (label, pid) = (self.process.label(), self.process.pid);
        match self.process.is_stopped() {
            true => format!(
                "{label}: it is stopped and does not answer (kill -CONT {pid} lets it go on)"
            ),
            false => format!("{label}: {}", self.error),
        }
    }

    /// As programs see it.
    pub(super) fn object(&self) -> Value {
        let Process { kind, pid, uid, .. } = &self.process;
        let error = json!({"kind": self.error.kind(), "message": self.why()});
        json!({"process": kind, "pid": pid, "uid": uid, "error": error})
    }
}

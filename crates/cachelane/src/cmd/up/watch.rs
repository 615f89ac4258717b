//! Whether the files of the configuration have changed, for whom nobody sends a signal, as where a cluster
//! manager puts them there.
//!
//! The files are read, and what they say is compared. Notifications (inotify) would be of what is at a path
//! at present: each symlink on the way, the folder that it leads to and the one that it will lead to would
//! have to be followed, and file systems of other machines send none.

use std::time::{Duration, Instant};

use crate::config::{Sources, Texts};

/// What the files said when they were looked at.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// How often to look; none for never.
    pub(super) every: Option<Duration>,
    /// What was read, and is in force or was refused.
    read: Texts,
    /// What they said at the look before this one.
    seen: Option<Texts>,
    looked: Option<Instant>,
}

impl Watch {
    /// This has been read, and needs no second look, whatever became of it.
    pub(super) fn was_read(&mut self, texts: Texts) {
        (self.read, self.seen) = (texts, None);
    }

    /// Looks, if it is time to; whether the files say something else than what was read last, and have said
    /// so for a look: one that is being written may say half of what it is to say.
    pub(super) fn finds_change(&mut self, sources: &Sources, now: Instant) -> bool {
        if self.every.is_none() || self.due().is_some_and(|due| now < due) {
            return false;
        }
        self.looked = Some(now);
        let texts = sources.read();
        let is_settled = self.seen.as_ref() == Some(&texts);
        let is_new = texts != self.read;
        self.seen = Some(texts);
        is_new && is_settled
    }

    /// When to look again.
    pub(super) fn due(&self) -> Option<Instant> {
        Some(self.looked? + self.every?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    const EVERY: Duration = Duration::from_secs(5);

    /// What a look finds that comes in its time.
    fn look(watch: &mut Watch, file: &Path) -> bool {
        let sources = Sources { paths: vec![file.to_owned()], flags: Vec::new() };
        let now = watch.due().unwrap_or_else(Instant::now);
        let found = watch.finds_change(&sources, now);
        assert!(!watch.finds_change(&sources, now), "a look before its time");
        if found {
            watch.was_read(sources.read());
        }
        found
    }

    #[test]
    fn a_change_is_found_once_it_has_stayed_for_a_look() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("config.toml");
        let mut watch = Watch { every: Some(EVERY), ..Watch::default() };
        fs::write(&file, "a").expect("a file");
        let sources = Sources { paths: vec![file.clone()], flags: Vec::new() };
        watch.was_read(sources.read());
        assert!(!look(&mut watch, &file) && !look(&mut watch, &file), "nothing has changed");
        fs::write(&file, "b").expect("a file");
        assert!(!look(&mut watch, &file), "it may be half of it");
        fs::write(&file, "bc").expect("a file");
        assert!(!look(&mut watch, &file), "it was");
        assert!(look(&mut watch, &file));
        assert!(!look(&mut watch, &file) && !look(&mut watch, &file), "it was read");
        fs::remove_file(&file).expect("a file");
        assert!(!look(&mut watch, &file));
        assert!(look(&mut watch, &file), "what is gone has changed");
        assert!(!look(&mut watch, &file) && !look(&mut watch, &file), "said once");
    }

    #[test]
    fn nothing_is_looked_at_unless_it_is_asked_for() {
        let mut watch = Watch::default();
        let sources = Sources { paths: vec!["/no/such/file".into()], flags: Vec::new() };
        assert!(!watch.finds_change(&sources, Instant::now()) && watch.due().is_none());
        assert!(!watch.finds_change(&sources, Instant::now() + EVERY));
    }
}

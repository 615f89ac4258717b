//! `net.core.rps_sock_flow_entries`: the size of the table that the kernel's own receive flow
//! steering needs. It is the whole machine's; there is none for a test host alone.
//!
//! What was found is put back when this is dropped, and by a shell that waits for this process to
//! end, however that comes about. A value that somebody else has written meanwhile is left alone.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

/// Where it is.
pub(super) const PATH: &str = "/proc/sys/net/core/rps_sock_flow_entries";
/// What the kernel's documentation advises for a moderately loaded server
/// (Documentation/networking/scaling.rst).
pub(super) const ADVISED: &str = "32768";

/// Waits until the other end of its input is closed, then puts back what it is told. Not `read` for
/// the value: that takes a byte at a time, and the kernel gives only the first.
const GUARD: &str = "while read -r nothing; do :; done
if [ \"$(/bin/cat \"$1\")\" = \"$2\" ]; then echo \"$3\" > \"$1\"; fi";

/// The setting, as found until it is raised.
#[derive(Debug)]
pub(super) struct FlowEntries {
    path: PathBuf,
    pub(super) found: String,
    guard: Child,
}

impl FlowEntries {
    /// Reads the machine's, and makes sure that it is put back.
    pub(super) fn of_machine() -> anyhow::Result<FlowEntries> {
        FlowEntries::of(Path::new(PATH))
    }

    fn of(path: &Path) -> anyhow::Result<FlowEntries> {
        let found = read(path).with_context(|| path.display().to_string())?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", GUARD, "guard"]).arg(path).args([ADVISED, &found]);
        // In a group of its own: Ctrl-C is for this process.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let guard = command.spawn().context("cannot start /bin/sh")?;
        Ok(FlowEntries { path: path.into(), found, guard })
    }

    /// Has it as advised, or as found.
    pub(super) fn set(&self, advised: bool) -> anyhow::Result<()> {
        let value = if advised { ADVISED } else { &self.found };
        fs::write(&self.path, value).with_context(|| self.path.display().to_string())
    }
}

impl Drop for FlowEntries {
    fn drop(&mut self) {
        // The guard does it, as it would if this process had ended.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

fn read(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_put_back_unless_it_is_somebody_elses_by_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("entries");
        for (found, later, left) in
            [("0", None, "0"), ("512", None, "512"), ("0", Some("99"), "99")]
        {
            fs::write(&path, format!("{found}\n")).unwrap();
            let entries = FlowEntries::of(&path).unwrap();
            assert_eq!(entries.found, found);
            entries.set(true).unwrap();
            assert_eq!(read(&path).unwrap(), ADVISED);
            if let Some(later) = later {
                fs::write(&path, later).unwrap();
            }
            drop(entries);
            assert_eq!(read(&path).unwrap(), left, "found {found}, later {later:?}");
        }
    }

    #[test]
    fn the_guard_puts_it_back_when_its_input_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("entries");
        fs::write(&path, "7\n").unwrap();
        let mut entries = FlowEntries::of(&path).unwrap();
        entries.set(true).unwrap();
        // As if this process had been killed: what the drop does is not run.
        drop(entries.guard.stdin.take());
        assert!(entries.guard.wait().unwrap().success());
        assert_eq!(read(&path).unwrap(), "7");
    }
}

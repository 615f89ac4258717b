//! Whose an XDP program is: the process that has it, or its link to the device, open.

use std::fs;
use std::path::Path;

use xsk::{Device, Hook};

/// A process that keeps a program where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    /// As `ps` shows it.
    command: String,
    is_ours: bool,
}

/// Which process has the device's XDP program, and how to end it if it is one of ours; none if
/// nobody is seen to.
pub(crate) fn of(device: &Device) -> Option<String> {
    let programs = Hook::programs(device).ok()?;
    let Holder { pid, command, is_ours } = holder(Path::new("/proc"), &programs)?;
    Some(match is_ours {
        true => format!("process {pid} ({command}) has it: `kill {pid}` ends that"),
        false => format!("process {pid} ({command}) has it"),
    })
}

/// The first process that has one of the programs open, one of ours before others.
fn holder(proc: &Path, programs: &[u32]) -> Option<Holder> {
    let all = fs::read_dir(proc).ok()?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let pid = path.file_name()?.to_str()?.parse().ok()?;
        // Another user's is not for us to see.
        let open = fs::read_dir(path.join("fdinfo")).ok()?;
        let mut open = open.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
        if !open.any(|info| program_of(&info).is_some_and(|id| programs.contains(&id))) {
            return None;
        }
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        Some(Holder { pid, command: command(&path, &name), is_ours: name.trim() == "cachelane" })
    });
    // A link is open in a child between its fork and its exec as well: the oldest is the one.
    all.min_by_key(|holder| (!holder.is_ours, holder.pid))
}

/// The program that an open file is, or is a link of: both say so in the same words.
fn program_of(info: &str) -> Option<u32> {
    info.lines().find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok())
}

/// Its arguments, as far as a line takes them, without what moves a cursor.
fn command(process: &Path, name: &str) -> String {
    const MOST: usize = 80;
    let arguments = fs::read(process.join("cmdline")).unwrap_or_default();
    let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
    let text = if arguments.trim().is_empty() { name } else { &arguments };
    text.trim().chars().take(MOST).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process with one open file.
    fn process(proc: &Path, pid: u32, name: &str, arguments: &str, info: &str) {
        let path = proc.join(pid.to_string());
        fs::create_dir_all(path.join("fdinfo")).expect("a folder");
        fs::write(path.join("comm"), format!("{name}\n")).expect("a file");
        fs::write(path.join("cmdline"), arguments).expect("a file");
        fs::write(path.join("fdinfo/3"), info).expect("a file");
    }

    #[test]
    fn who_has_a_program_or_its_link_is_found_ours_first() {
        let proc = tempfile::TempDir::new().expect("a folder");
        let link =
            "pos:\t0\nlink_type:\txdp\nlink_id:\t4\nprog_tag:\tab\nprog_id:\t17\nifindex:\t2\n";
        process(
            proc.path(),
            5,
            "other",
            "/bin/other\0-x\0",
            "pos:\t0\nprog_type:\t6\nprog_id:\t17\n",
        );
        process(proc.path(), 70, "cachelane", "cachelane\0steer\0eth0\0", link);
        process(proc.path(), 71, "cachelane", "cachelane\0relay\0", "pos:\t0\nflags:\t02\n");
        let found = |programs: &[u32]| holder(proc.path(), programs);
        let ours = found(&[17]).expect("a holder");
        assert_eq!(
            (ours.pid, ours.command.as_str(), ours.is_ours),
            (70, "cachelane steer eth0", true)
        );
        assert_eq!(found(&[18]), None);
        fs::remove_dir_all(proc.path().join("70")).expect("it goes");
        let other = found(&[17]).expect("a holder");
        assert_eq!((other.pid, other.command.as_str(), other.is_ours), (5, "/bin/other -x", false));
    }
}

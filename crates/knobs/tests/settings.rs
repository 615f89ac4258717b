//! Settings of a test host, changed by processes that are killed, by others, and by both.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use cachelane_knobs::{Error, ErrorKind, Held, Outcome, Reach, Setting, Subject, Undone, undo_in};
use common::{child, work_of_child};
use lab::testing::{comes_true, root};
use lab::{Host, Lab};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use tempfile::TempDir;

/// Of a network namespace each, and used by nobody here.
const TTL: &str = "net.ipv4.ip_default_ttl";
const BEFORE: &str = "64";
const MEMORY: &str = "net.ipv4.tcp_wmem";

#[test]
fn root_a_setting_is_held_set_and_restored() {
    if !root("root_a_setting_is_held_set_and_restored") {
        return;
    }
    let place = Place::new("restore");
    place.within(|| {
        let mut held = place.hold(TTL).unwrap();
        assert_eq!(held.before(), BEFORE);
        assert_eq!(held.set("70").unwrap(), "70");
        held.renew().unwrap();
        let error = held.set("no number").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadValue);
        let said = "sysctl:net.ipv4.ip_default_ttl does not take \"no number\" (it is \"70\" now)";
        assert!(error.to_string().starts_with(said), "{error}");
        assert_eq!(held.value().unwrap(), "70");
        held.restore().unwrap();
        let mut held = place.hold(TTL).unwrap();
        held.set("71").unwrap();
        drop(held);
    });
    assert_eq!((place.ttl().as_str(), place.journals().len()), (BEFORE, 0));
    place.within(|| {
        let mut held = place.hold(TTL).unwrap();
        held.set("72").unwrap();
        held.keep().unwrap();
    });
    assert_eq!((place.ttl().as_str(), place.journals().len()), ("72", 0));
}

#[test]
fn root_a_value_that_the_kernel_changes_is_refused_and_undone() {
    if !root("root_a_value_that_the_kernel_changes_is_refused_and_undone") {
        return;
    }
    let place = Place::new("changes");
    place.within(|| {
        let mut held = place.hold(MEMORY).unwrap();
        let before = held.before().to_owned();
        // It sets the first of three numbers.
        let error = held.set("8192").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadValue);
        assert!(error.to_string().contains("the kernel makes it \"8192\\t"), "{error}");
        assert_eq!(held.value().unwrap(), before);
        held.set("8192 16384 32768").unwrap();
        held.restore().unwrap();
        assert_eq!(place.subject(MEMORY).unwrap().hold("test", LONG).unwrap().before(), before);
    });
    assert_eq!(place.journals().len(), 0);
}

#[test]
fn root_what_somebody_else_changed_is_left_alone() {
    if !root("root_what_somebody_else_changed_is_left_alone") {
        return;
    }
    let place = Place::new("others");
    place.within(|| {
        let mut held = place.hold(TTL).unwrap();
        held.set("70").unwrap();
        fs::write("/proc/sys/net/ipv4/ip_default_ttl", "99").unwrap();
        for error in [held.set("71").unwrap_err(), held.renew().unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Changed);
            assert!(error.to_string().contains("is \"99\": somebody else"), "{error}");
        }
        assert_eq!(held.restore().unwrap_err().kind(), ErrorKind::Changed);
    });
    assert_eq!((place.ttl().as_str(), place.journals().len()), ("99", 0));
    place.host.set_sysctl(TTL, BEFORE).unwrap();
    place.kill(place.start(&["70"]));
    place.host.set_sysctl(TTL, "99").unwrap();
    let undone = place.undo(false);
    assert_eq!(undone.outcome, Outcome::Changed, "{undone}");
    assert_eq!((place.ttl().as_str(), place.journals().len()), ("99", 0));
}

#[test]
fn root_what_somebody_else_changes_as_it_is_set_is_left_alone() {
    if !root("root_what_somebody_else_changes_as_it_is_set_is_left_alone") {
        return;
    }
    let place = Place::new("race");
    place.within(|| {
        let mut seen = 0;
        for _ in 0..300 {
            fs::write("/proc/sys/net/ipv4/ip_default_ttl", BEFORE).unwrap();
            let mut held = place.hold(TTL).unwrap();
            held.set("70").unwrap();
            held.set("71").unwrap();
            let other = thread::spawn(|| fs::write("/proc/sys/net/ipv4/ip_default_ttl", "99"));
            let error = ["70", "71"].iter().cycle().take(100).find_map(|it| held.set(it).err());
            other.join().unwrap().unwrap();
            // It may have been overwritten before it was seen.
            if let Some(error) = error {
                assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
                assert_eq!(held.value().unwrap(), "99");
                assert_eq!(held.restore().unwrap_err().kind(), ErrorKind::Changed);
                seen += 1;
            }
        }
        assert!(seen > 0);
    });
    assert_eq!(place.journals().len(), 0);
}

#[test]
fn root_two_processes_never_have_one_setting() {
    if !root("root_two_processes_never_have_one_setting") {
        return;
    }
    let place = Place::new("two");
    let first = place.start(&["70"]);
    let pid = first.id();
    for name in [format!("sysctl:{TTL}"), "file:/proc/sys/net/ipv4/ip_default_ttl".into()] {
        let error = place.within(|| place.subject_named(&name)?.hold("test", LONG)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held);
        let said = format!("is in use by process {pid}, which will restore it");
        assert!(error.to_string().contains(&said), "{error}");
    }
    let undone = place.undo(false);
    assert_eq!(undone.outcome, Outcome::InUse, "{undone}");
    assert_eq!(place.ttl(), "70");
    place.kill(first);
    // The next holder finds what the first one left, and begins with what was there before that.
    let before = place.within(|| place.hold(TTL).unwrap().before().to_owned());
    assert_eq!((before.as_str(), place.ttl().as_str()), (BEFORE, BEFORE));
}

#[test]
fn root_killed_at_any_moment_a_process_leaves_what_undo_restores() {
    if !root("root_killed_at_any_moment_a_process_leaves_what_undo_restores") {
        return;
    }
    const ROUNDS: u64 = 200;
    let place = Place::new("killed");
    let mut left = 0;
    for round in 0..ROUNDS {
        let holder = place.start(&["70", "71", "72"]);
        // Spread over what a hold with its changes takes.
        thread::sleep(Duration::from_micros(round * 7_919 % 3_000));
        place.kill(holder);
        left += usize::from(place.ttl() != BEFORE);
        if round % 4 == 0 {
            // Undo is killed as well.
            let mut undo = place.spawn("undoer", &[]);
            thread::sleep(Duration::from_micros(round * 104_729 % 20_000));
            undo.kill().unwrap();
            undo.wait().unwrap();
        }
        let undone = place.within(|| undo_in(place.dir.path(), false)).unwrap();
        assert!(!undone.iter().any(Undone::is_trouble), "round {round}: {undone:?}");
        assert_eq!(place.ttl(), BEFORE, "round {round}: {undone:?}");
        assert_eq!(place.journals(), Vec::<PathBuf>::new(), "round {round}: {undone:?}");
    }
    assert!(left > 0, "no process was killed while the value was its own");
}

#[test]
fn undoer() {
    if let Some(dir) = work_of_child("undoer") {
        undo_in(Path::new(dir.trim()), false).unwrap();
        std::process::exit(0);
    }
}

#[test]
fn setter() {
    let Some(work) = work_of_child("setter") else { return };
    let mut words = work.split(' ');
    let dir = words.next().unwrap();
    let (name, values) = (words.next().unwrap(), Vec::from_iter(words));
    let mut is_first = true;
    loop {
        let subject = Subject::find_in(name, None, Path::new(dir)).unwrap();
        let mut held = subject.hold("a child", LONG).unwrap();
        for value in &values {
            held.set(value).unwrap();
            if std::mem::take(&mut is_first) {
                println!("set");
            }
            if let [_] = values[..] {
                thread::sleep(Duration::from_secs(1_000));
            }
        }
        held.restore().unwrap();
    }
}

#[test]
fn root_what_is_gone_is_said_and_dropped() {
    if !root("root_what_is_gone_is_said_and_dropped") {
        return;
    }
    let place = Place::new("gone");
    place.host.ip(["link", "add", "gone0", "type", "veth", "peer", "name", "gone1"]).unwrap();
    let name = "sysctl:net.ipv4.conf.gone0.rp_filter";
    place.kill(place.start_named(name, &["2"]));
    place.host.ip(["link", "del", "gone0"]).unwrap();
    let undone = place.undo(true);
    assert_eq!((undone.setting.as_str(), undone.outcome), (name, Outcome::Gone));
    assert_eq!(place.undo(false).outcome, Outcome::Gone);
    assert_eq!(place.journals().len(), 0);

    // The machine has started anew.
    place.kill(place.start(&["70"]));
    place.edit_journal(|record| record["boot"] = "another".into());
    assert_eq!(place.undo(false).outcome, Outcome::Gone);
    assert_eq!((place.ttl().as_str(), place.journals().len()), ("70", 0));

    // The network namespace is gone, and the file means another one.
    place.host.set_sysctl(TTL, BEFORE).unwrap();
    place.kill(place.start(&["70"]));
    let undone = undo_in(place.dir.path(), false).unwrap();
    assert_eq!(undone[0].outcome, Outcome::Elsewhere, "{undone:?}");
    assert_eq!((place.ttl().as_str(), place.journals().len()), ("70", 1));
    let Place { dir, host, lab } = place;
    drop((host, lab));
    let undone = undo_in(dir.path(), false).unwrap();
    // A process that cannot be looked at may be in the namespace.
    let expected = if sees_all_processes() { Outcome::Gone } else { Outcome::Elsewhere };
    assert_eq!(undone[0].outcome, expected, "{undone:?}");
    let left = undo_in(dir.path(), false).unwrap();
    assert_eq!(left.is_empty(), expected == Outcome::Gone, "{left:?}");
}

#[test]
fn root_a_dry_run_changes_nothing() {
    if !root("root_a_dry_run_changes_nothing") {
        return;
    }
    let place = Place::new("dry");
    place.kill(place.start(&["70"]));
    let would = place.undo(true);
    assert_eq!(would.to_string(), format!("sysctl:{TTL}: restored to {BEFORE} (it was 70)"));
    assert_eq!((place.ttl().as_str(), place.journals().len()), ("70", 1));
    assert_eq!(place.undo(false), would);
    assert_eq!((place.ttl().as_str(), place.journals().len()), (BEFORE, 0));
}

#[test]
fn root_a_damaged_journal_is_named_and_left() {
    if !root("root_a_damaged_journal_is_named_and_left") {
        return;
    }
    let place = Place::new("damaged");
    place.kill(place.start(&["70"]));
    let path = place.journals().remove(0);
    let whole = fs::read_to_string(&path).unwrap();
    let forged = whole.replace("ip_default_ttl", "ip_forward");
    for text in ["", "{", &whole[..whole.len() / 2], &whole.replace("\"pid\"", "\"pd\""), &forged] {
        fs::write(&path, text).unwrap();
        let undone = place.undo(false);
        assert_eq!(undone.outcome, Outcome::Damaged, "{text}");
        assert!(undone.to_string().contains(&*path.to_string_lossy()), "{undone}");
        let error = place.within(|| place.hold(TTL)).unwrap_err();
        assert!(error.to_string().contains("is damaged"), "{error}");
        assert_eq!(
            (place.ttl().as_str(), fs::read_to_string(&path).unwrap().as_str()),
            ("70", text)
        );
    }
    fs::write(&path, whole).unwrap();
    assert_eq!(place.undo(false).outcome, Outcome::Restored);
}

#[test]
fn what_somebody_was_killed_while_writing_is_removed_after_a_while() {
    let dir = TempDir::new().unwrap();
    let [old, young, other] = ["a.undo.7-1.new", "b.undo.7-1.new", "c.new"].map(|name| {
        let path = dir.path().join(name);
        fs::write(&path, "{").unwrap();
        path
    });
    let an_hour_ago = SystemTime::now() - Duration::from_secs(3_600);
    for path in [&old, &other] {
        fs::File::options().write(true).open(path).unwrap().set_modified(an_hour_ago).unwrap();
    }
    assert_eq!(undo_in(dir.path(), false).unwrap(), []);
    assert_eq!([old, young, other].map(|path| path.exists()), [false, true, true]);
}

#[test]
fn root_files_of_sysfs_are_set_through_their_links() {
    if !root("root_files_of_sysfs_are_set_through_their_links") {
        return;
    }
    let place = Place::new("sysfs");
    let script = "mount -t sysfs none /sys && cat /sys/class/net/lo/queues/rx-0/rps_cpus && \
                  exec \"$@\"";
    let own_sysfs = ["--mount", "--propagation", "private", "sh", "-c", script, "sh"];
    let name = "file:/sys/class/net/lo/queues/rx-0/rps_cpus";
    let start = |test: &str, argument: &str| {
        let work = child(test, argument);
        let mut command = std::process::Command::new("unshare");
        command.args(own_sysfs).arg(work.get_program()).args(work.get_args());
        command.envs(work.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdout(Stdio::piped());
        place.within(|| command.spawn().unwrap())
    };
    let dir = place.dir.path().to_str().unwrap();
    let holder = wait_for_set(start("setter", &format!("{dir} {name} 1")));
    place.kill(holder);
    let undone = undo_in(place.dir.path(), false).unwrap();
    assert_eq!(undone[0].outcome, Outcome::Elsewhere, "the machine's own is another: {undone:?}");
    let status = start("undoer", dir).wait().unwrap();
    assert_eq!((status.code(), place.journals().len()), (Some(0), 0));
}

/// As `ip netns exec` mounts it for each command.
#[test]
fn root_a_file_of_sysfs_is_restored_though_that_was_mounted_anew() {
    if !root("root_a_file_of_sysfs_is_restored_though_that_was_mounted_anew") {
        return;
    }
    let place = Place::new("anew");
    let name = "file:/sys/class/net/lo/queues/rx-0/rps_cpus";
    let dir = place.dir.path().to_str().unwrap();
    let start = |test: &str, argument: &str, how: &str| {
        let script = format!("mount -t sysfs none /sys && stat -c %d /sys && {how}");
        let work = child(test, argument);
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        command.arg(work.get_program()).args(work.get_args());
        command.envs(work.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdout(Stdio::piped());
        place.within(|| command.spawn().unwrap())
    };
    let mut holder = start("setter", &format!("{dir} {name} 1"), "exec \"$@\"");
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
    let device = lines.next().unwrap();
    assert!(lines.any(|line| line.ends_with("set")));
    place.kill(holder);
    // Something else has its number.
    let mut taken = Vec::new();
    assert!(comes_true(|| {
        taken.push(tmpfs());
        fs::metadata(format!("/proc/self/fd/{}", taken.last().unwrap().as_raw_fd()))
            .is_ok_and(|it| it.dev().to_string() == device)
    }));
    let file = name.trim_start_matches("file:");
    let undoer = start("undoer", dir, &format!("\"$@\" && echo && cat {file}"));
    let output = undoer.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.lines().next() != Some(&device), "{said}");
    assert_eq!((said.lines().last(), place.journals().len()), (Some("0"), 0), "{said}");
}

/// A file system that is mounted nowhere.
fn tmpfs() -> OwnedFd {
    let tmpfs = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    fsconfig_create(&tmpfs).unwrap();
    fsmount(&tmpfs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap()
}

#[test]
fn what_is_no_setting_is_refused() {
    let dir = TempDir::new().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "1\n").unwrap();
    symlink("/proc/sys/kernel/ostype", &link).unwrap();
    let named = |path: &Path| format!("file:{}", path.display());
    let own = format!("file:/proc/{}/comm", std::process::id());
    for (name, kind, said) in [
        ("sysctl:", ErrorKind::BadSubject, "expected a sysctl's name"),
        ("sysctl:net/../../../etc/passwd", ErrorKind::BadSubject, "is no part of a name"),
        ("sysctl:net.core.no_such", ErrorKind::NoSetting, "/proc/sys/net/core/no_such"),
        ("sysctl:net.core", ErrorKind::BadSubject, "it is not a regular file"),
        ("file:relative", ErrorKind::BadSubject, "its path is not absolute"),
        ("file:/proc/sys/../../etc/passwd", ErrorKind::BadSubject, "is no part of a name"),
        ("file:/sys/class/net/lo/none", ErrorKind::NoSetting, "/sys/class/net/lo/none"),
        ("file:/sys/class", ErrorKind::BadSubject, "it is not a regular file"),
        ("file:/dev/null", ErrorKind::BadSubject, "not on a file system of the kernel's"),
        ("file:/proc/self/comm", ErrorKind::BadSubject, "it is a process's"),
        ("file:/proc/self/root/etc/passwd", ErrorKind::BadSubject, "a link in its path"),
        (&own, ErrorKind::BadSubject, "it is a process's"),
        (&named(&file), ErrorKind::BadSubject, "not on a file system of the kernel's"),
        (&named(&link), ErrorKind::BadSubject, ""),
        ("other:x", ErrorKind::BadSubject, "expected sysctl:NAME or file:PATH"),
    ] {
        let error = Subject::find_in(name, None, dir.path()).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(said), "{name}: {error}");
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
    let error = Subject::find_in("sysctl:kernel.pid_max", Some(1), dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadSubject);
    let several: Setting = "file:/proc/meminfo".parse().unwrap();
    assert!(several.read().unwrap_err().to_string().contains("several lines"));
    let setting: Setting = "sysctl:kernel.ostype".parse().unwrap();
    assert_eq!(setting.read().unwrap(), "Linux");
    for value in ["two\nlines", &"x".repeat(5_000)] {
        assert_eq!(setting.write(value).unwrap_err().kind(), ErrorKind::BadValue);
    }
}

/// So long that no test sees its end.
const LONG: Duration = Duration::from_secs(60);

/// A test host and a runtime directory.
struct Place {
    dir: TempDir,
    host: Host,
    lab: Lab,
}

impl Place {
    fn new(name: &str) -> Self {
        let lab = Lab::new(name).unwrap();
        let host = lab.host("host").unwrap();
        Self { dir: TempDir::new().unwrap(), host, lab }
    }

    fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.host.run(work).unwrap()
    }

    fn ttl(&self) -> String {
        self.host.sysctl(TTL).unwrap()
    }

    /// Of a sysctl, on a thread in the host.
    fn hold(&self, sysctl: &str) -> Result<Held, Error> {
        self.subject(sysctl)?.hold("test", LONG)
    }

    fn subject(&self, sysctl: &str) -> Result<Subject, Error> {
        self.subject_named(&format!("sysctl:{sysctl}"))
    }

    fn subject_named(&self, name: &str) -> Result<Subject, Error> {
        let subject = Subject::find_in(name, None, self.dir.path())?;
        assert_eq!((subject.reach(), subject.name()), (Reach::Unknown, name));
        Ok(subject)
    }

    /// The journals that there are, without what somebody was killed while writing.
    fn journals(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "undo")).collect()
    }

    fn edit_journal(&self, edit: impl FnOnce(&mut serde_json::Value)) {
        let path = self.journals().remove(0);
        let mut record = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut record);
        fs::write(path, record.to_string()).unwrap();
    }

    /// What undo in the host says of the one setting that there is.
    fn undo(&self, dry_run: bool) -> Undone {
        let mut all = self.within(|| undo_in(self.dir.path(), dry_run)).unwrap();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    /// A process that has set the TTL. With one value it rests then; with several, it sets them one
    /// after the other, restores the TTL, and begins anew.
    fn start(&self, values: &[&str]) -> Child {
        self.start_named(&format!("sysctl:{TTL}"), values)
    }

    fn start_named(&self, name: &str, values: &[&str]) -> Child {
        wait_for_set(self.spawn("setter", &[&[name], values].concat()))
    }

    fn spawn(&self, test: &str, arguments: &[&str]) -> Child {
        let work = [&[self.dir.path().to_str().unwrap()], arguments].concat().join(" ");
        let mut command = child(test, &work);
        command.stdout(Stdio::piped());
        self.within(|| command.spawn().unwrap())
    }

    fn kill(&self, mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

fn sees_all_processes() -> bool {
    let mut processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    !processes.any(|process| {
        let link = fs::read_link(process.join("ns/net"));
        link.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    })
}

fn wait_for_set(mut child: Child) -> Child {
    let out = BufReader::new(child.stdout.as_mut().unwrap());
    let said = out.lines().map(Result::unwrap).find(|line| line.ends_with("set"));
    assert!(said.is_some(), "the child ended: {:?}", child.wait());
    child
}

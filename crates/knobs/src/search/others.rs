//! Tests: how root looks at the directories of another user, who means no good.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::net::UnixListener;

use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use tempfile::TempDir;

use super::*;

/// The other user.
const UID: u32 = 65_534;

/// A directory of the other user's in a directory that everybody may look into; none without root.
fn theirs(test: &str) -> Option<(TempDir, PathBuf)> {
    if !geteuid().is_root() {
        eprintln!("skipped: {test}: needs root");
        return None;
    }
    let parent = TempDir::new().unwrap();
    chown(parent.path(), Some(UID), None).unwrap();
    let dir = parent.path().join("cachelane");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(UID), None).unwrap();
    Some((parent, dir))
}

/// Sockets that the other user listens to.
fn listeners(paths: impl IntoIterator<Item = PathBuf> + Send) -> Vec<UnixListener> {
    // The kernel keeps credentials by thread, and a listener has those of who made it.
    let listen = || {
        let user = Uid::from_raw(UID);
        set_thread_res_uid(user, user, user).unwrap();
        paths.into_iter().map(|path| UnixListener::bind(path).unwrap()).collect()
    };
    thread::scope(|scope| scope.spawn(listen).join().unwrap())
}

fn found(dir: &Path, bound: &mut Bound) -> Vec<Process> {
    list(dir, UID, bound).unwrap()
}

#[test]
fn root_a_directory_that_becomes_a_link_leads_to_no_other_users_process() {
    let test = "root_a_directory_that_becomes_a_link_leads_to_no_other_users_process";
    let Some((parent, dir)) = theirs(test) else { return };
    let _listener = listeners([dir.join("relay-7.sock")]);
    let processes = found(&dir, &mut Bound::of(UID));
    processes[0].connect().unwrap();
    let roots = TempDir::new().unwrap();
    let _roots = UnixListener::bind(roots.path().join("relay-7.sock")).unwrap();
    fs::rename(&dir, parent.path().join("moved")).unwrap();
    symlink(roots.path(), &dir).unwrap();
    let error = processes[0].connect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    assert!(error.to_string().starts_with("uid 0 answers at "), "{error}");
}

#[test]
fn root_a_user_can_have_only_so_many_processes_looked_at() {
    let Some((parent, dir)) = theirs("root_a_user_can_have_only_so_many_processes_looked_at")
    else {
        return;
    };
    let second = parent.path().join("second");
    fs::create_dir(&second).unwrap();
    chown(&second, Some(UID), None).unwrap();
    let path = |dir: &Path, pid: usize| dir.join(format!("relay-{pid}.sock"));
    // What dead processes left counts only as files.
    drop(listeners((100..200).map(|pid| path(&dir, pid)).collect::<Vec<_>>()));
    let half = MAX_OF_OTHERS / 2;
    let _first = listeners((0..half).map(|pid| path(&dir, pid)).collect::<Vec<_>>());
    let _second = listeners((0..2 * half).map(|pid| path(&second, pid)).collect::<Vec<_>>());
    let mut bound = Bound::of(UID);
    assert_eq!(found(&dir, &mut bound).len(), half);
    assert_eq!(found(&second, &mut bound).len(), MAX_OF_OTHERS - half);
    let mut bound = Bound { files: 99, ..Bound::of(UID) };
    found(&dir, &mut bound);
    assert_eq!((bound.files, found(&second, &mut bound).len()), (0, 0));
}

#[test]
fn root_a_long_answer_is_read_only_of_ones_own_process() {
    let Some((_parent, dir)) = theirs("root_a_long_answer_is_read_only_of_ones_own_process") else {
        return;
    };
    let path = dir.join("relay-7.sock");
    let [listener] = <[_; 1]>::try_from(listeners([path])).unwrap();
    let ours = TempDir::new().unwrap();
    let own = UnixListener::bind(ours.path().join("relay-7.sock")).unwrap();
    for listener in [listener, own] {
        thread::spawn(move || {
            for stream in listener.incoming().map_while(std::io::Result::ok) {
                // The client goes in the middle.
                let asked = BufReader::new(&stream).read_line(&mut String::new());
                if asked.is_ok_and(|asked| asked > 0) {
                    let pad = "x".repeat(300 * 1024);
                    let _ = writeln!(&stream, r#"{{"schema":1,"ok":{{"value":"{pad}"}}}}"#);
                }
            }
        });
    }
    let get = |process: &Process| process.connect().and_then(|mut client| client.get("t.x"));
    let error = get(&found(&dir, &mut Bound::of(UID))[0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().contains("as uid 65534, whose process it is"), "{error}");
    assert_eq!(get(&discover_in(ours.path()).unwrap()[0]).unwrap().len(), 300 * 1024);
}

//! Where control sockets are, and which processes they belong to.
//!
//! The directory is the first line of defence: it belongs to one user, and nobody else may write
//! to it, so nobody else can put a socket there that pretends to be a process.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::{Error, ErrorKind, Result};

/// The directory of this user's control sockets: `$CACHELANE_RUNTIME_DIR`, else `/run/cachelane`
/// for root, else `$XDG_RUNTIME_DIR/cachelane`, else `/tmp/cachelane-UID`. It need not exist.
pub fn runtime_dir() -> PathBuf {
    choose(|name| env::var_os(name), geteuid().as_raw())
}

/// Some directories to search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// As people write them all.
    pub(crate) pattern: String,
    /// Each, and whose it is to be.
    pub(crate) dirs: Vec<(PathBuf, u32)>,
    /// It is an error if they cannot be believed.
    pub(crate) must: bool,
}

impl Place {
    /// One directory of this user's.
    pub(crate) fn own(dir: PathBuf) -> Self {
        let pattern = dir.display().to_string();
        Self { pattern, dirs: vec![(dir, geteuid().as_raw())], must: true }
    }
}

/// Where to look for the processes of this user or, for root, of all users.
pub(crate) fn places() -> Vec<Place> {
    let variable = |name: &str| env::var_os(name);
    places_of(variable, geteuid().as_raw(), Path::new("/"))
}

fn places_of(variable: impl Fn(&str) -> Option<OsString>, uid: u32, root: &Path) -> Vec<Place> {
    let own = choose(&variable, uid);
    let (users, tmp) = (root.join("run/user"), root.join("tmp"));
    let is_given = variable("CACHELANE_RUNTIME_DIR").is_some_and(|dir| !dir.is_empty());
    let mut places = vec![Place { dirs: vec![(own.clone(), uid)], ..Place::own(own.clone()) }];
    if is_given {
        return places;
    }
    // Not what the environment says: a process may have been started from elsewhere.
    let of_users = |uid: u32| users.join(uid.to_string()).join("cachelane");
    let of_tmp = |uid: u32| tmp.join(format!("cachelane-{uid}"));
    let mut add = |pattern: PathBuf, dirs: Vec<(PathBuf, u32)>| {
        let pattern = pattern.display().to_string();
        places.push(Place { pattern, dirs, must: false });
    };
    if uid == 0 {
        let dirs = |of: &dyn Fn(u32) -> PathBuf, uids: Vec<u32>| {
            uids.into_iter().map(|uid| (of(uid), uid)).collect()
        };
        add(users.join("*/cachelane"), dirs(&of_users, uids_in(&users, "")));
        add(tmp.join("cachelane-*"), dirs(&of_tmp, uids_in(&tmp, "cachelane-")));
    } else {
        for dir in [of_users(uid), of_tmp(uid)].into_iter().filter(|dir| *dir != own) {
            add(dir.clone(), vec![(dir, uid)]);
        }
    }
    places
}

/// The user ids that names in a directory end with.
fn uids_in(dir: &Path, prefix: &str) -> Vec<u32> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix(prefix)?.parse().ok()).collect()
}

/// Creates the directory if need be, and refuses one that others could tamper with.
pub(crate) fn prepare(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| Error::io(format!("create {}", dir.display()), error))?;
    check(dir)
}

fn choose(variable: impl Fn(&str) -> Option<OsString>, uid: u32) -> PathBuf {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("CACHELANE_RUNTIME_DIR") {
        return dir;
    }
    match set("XDG_RUNTIME_DIR") {
        _ if uid == 0 => PathBuf::from("/run/cachelane"),
        Some(dir) if dir.is_absolute() => dir.join("cachelane"),
        _ => PathBuf::from(format!("/tmp/cachelane-{uid}")),
    }
}

/// Refuses a directory that others could tamper with.
pub(crate) fn check(dir: &Path) -> Result<()> {
    check_of(dir, geteuid().as_raw())
}

/// Refuses a directory that anybody but this user could tamper with.
pub(crate) fn check_of(dir: &Path, uid: u32) -> Result<()> {
    // Not following a link: in /tmp, somebody else may have planted one.
    let metadata = fs::symlink_metadata(dir)
        .map_err(|error| Error::io(format!("look at {}", dir.display()), error))?;
    let mode = metadata.permissions().mode() & 0o7777;
    let trouble = if !metadata.is_dir() {
        "is not a directory".to_owned()
    } else if metadata.uid() != uid {
        format!("belongs to uid {} (expected {uid})", metadata.uid())
    } else if mode & 0o022 != 0 {
        format!("can be written by others (mode {mode:04o}, expected 0700)")
    } else {
        return Ok(());
    };
    let message = format!(
        "runtime directory {} {trouble}; set CACHELANE_RUNTIME_DIR to one of your own",
        dir.display()
    );
    Err(Error::new(ErrorKind::NotPermitted, message))
}

/// The part of a control socket's name that says of what process it is, such as `relay-42`.
pub(crate) fn socket_stem(kind: &str, pid: u32) -> Result<String> {
    if is_kind(kind) {
        return Ok(format!("{kind}-{pid}"));
    }
    let message = format!("process name {kind:?} is not lowercase letters, digits, - and _");
    Err(Error::new(ErrorKind::BadName, message))
}

pub(crate) fn is_kind(kind: &str) -> bool {
    let fits = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_'
    };
    !kind.is_empty() && kind.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover_in;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    #[test]
    fn the_directory_follows_the_environment_and_the_user() {
        for (ours, xdg, uid, expected) in [
            ("/x", "/run/user/7", 0, "/x"),
            ("/x", "", 7, "/x"),
            ("", "/run/user/0", 0, "/run/cachelane"),
            ("", "/run/user/7", 7, "/run/user/7/cachelane"),
            ("", "", 7, "/tmp/cachelane-7"),
            ("", "relative", 7, "/tmp/cachelane-7"),
        ] {
            let variable = |name: &str| match name {
                "CACHELANE_RUNTIME_DIR" => Some(OsString::from(ours)),
                "XDG_RUNTIME_DIR" => Some(OsString::from(xdg)),
                _ => None,
            };
            assert_eq!(choose(variable, uid), Path::new(expected), "{ours:?} {xdg:?} {uid}");
        }
    }

    #[test]
    fn a_kind_of_process_is_plain() {
        assert_eq!(socket_stem("lend-rx_0", 7).unwrap(), "lend-rx_0-7");
        for kind in ["", "Relay", "a/b", "a.b", "..", "é"] {
            assert_eq!(socket_stem(kind, 1).unwrap_err().kind(), ErrorKind::BadName, "{kind:?}");
        }
    }

    #[test]
    fn users_search_all_places_of_theirs_and_root_those_of_all() {
        let root = TempDir::new().unwrap();
        for dir in ["run/user/7/cachelane", "run/user/x", "tmp/cachelane-8", "tmp/cachelane-y"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let at = |path: &str| root.path().join(path);
        let search = |variables: &[(&str, &str)], uid| {
            let variable = |name: &str| {
                variables.iter().find(|(of, _)| *of == name).map(|(_, value)| value.into())
            };
            let places = places_of(variable, uid, root.path());
            places.into_iter().flat_map(|place| place.dirs).collect::<Vec<_>>()
        };
        let (xdg, tmp) = (at("run/user/7/cachelane"), at("tmp/cachelane-8"));
        let own = PathBuf::from("/run/cachelane");
        assert_eq!(search(&[], 0), [(own, 0), (xdg.clone(), 7), (tmp, 8)]);
        let xdg_set = at("run/user/7").display().to_string();
        let tmp = (at("tmp/cachelane-7"), 7);
        assert_eq!(search(&[("XDG_RUNTIME_DIR", &xdg_set)], 7), [(xdg.clone(), 7), tmp.clone()]);
        let without = search(&[], 7);
        assert!(without.contains(&(xdg, 7)) && without.contains(&tmp), "{without:?}");
        assert_eq!(search(&[("CACHELANE_RUNTIME_DIR", "/x")], 0), [(PathBuf::from("/x"), 0)]);
    }

    #[test]
    fn a_new_directory_is_private() {
        let parent = TempDir::new().unwrap();
        let dir = parent.path().join("a/b");
        prepare(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o7777, 0o700);
        prepare(&dir).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_tamper_with_is_refused() {
        let parent = TempDir::new().unwrap();
        let (dir, link, file) =
            (parent.path().join("dir"), parent.path().join("link"), parent.path().join("file"));
        fs::create_dir(&dir).unwrap();
        for mode in [0o770, 0o702, 0o1777] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(prepare(&dir).unwrap_err().kind(), ErrorKind::NotPermitted, "{mode:o}");
            assert_eq!(discover_in(&dir).unwrap_err().kind(), ErrorKind::NotPermitted);
        }
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        prepare(&dir).unwrap();
        symlink(&dir, &link).unwrap();
        assert_eq!(prepare(&link).unwrap_err().kind(), ErrorKind::NotPermitted);
        fs::write(&file, "").unwrap();
        assert_eq!(discover_in(&file).unwrap_err().kind(), ErrorKind::NotPermitted);
    }

    #[test]
    fn root_refuses_the_directory_of_another_user() {
        if !geteuid().is_root() {
            eprintln!("skipped: root_refuses_the_directory_of_another_user: needs root");
            return;
        }
        let dir = TempDir::new().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
        let error = prepare(dir.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert!(error.to_string().contains("belongs to uid 65534 (expected 0)"), "{error}");
    }

    #[test]
    fn where_there_is_no_directory_there_is_no_process() {
        let parent = TempDir::new().unwrap();
        assert_eq!(discover_in(&parent.path().join("none")).unwrap(), []);
    }
}

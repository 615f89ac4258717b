//! Hosts made of fixtures; `tests/fixtures/README.md` says how they are written.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cachelane_doctor::{Facts, Host, LookOptions, Place, findings};
use lanes::CpuSet;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// A host that is written down as a recorded tree.
pub(crate) struct Made {
    dir: TempDir,
    answers: Value,
}

impl Made {
    /// The host of this name.
    pub(crate) fn new(name: &str) -> Made {
        let mut made = Made { dir: TempDir::new().expect("a folder"), answers: json!({}) };
        let text = fs::read_to_string(fixtures().join(format!("{name}.txt")));
        made.change(&text.unwrap_or_else(|error| panic!("{name}: {error}")));
        made
    }

    /// Does what these lines say.
    pub(crate) fn change(&mut self, lines: &str) {
        for line in lines.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "include" => {
                    let text = fs::read_to_string(fixtures().join(format!("{rest}.txt")));
                    self.change(&text.unwrap_or_else(|error| panic!("{rest}: {error}")));
                }
                "lanes" => self.lanes(rest),
                "json" => {
                    let (pointer, value) = rest.split_once(' ').expect("a pointer and a value");
                    let value = serde_json::from_str(value);
                    let value = value.unwrap_or_else(|error| panic!("{line}: {error}"));
                    set(&mut self.answers, pointer, value);
                }
                "-" => self.remove(rest),
                _ => self.entry(word, rest),
            }
        }
    }

    /// The folder, as `Place::Recorded` wants it.
    pub(crate) fn folder(&self) -> &Path {
        let file = self.dir.path().join("cachelane-doctor.json");
        fs::write(file, self.answers.to_string()).expect("a file");
        self.dir.path()
    }

    pub(crate) fn look(&self) -> Host {
        let place = Place::Recorded(self.folder().to_owned());
        Host::look(&place, &LookOptions::default()).expect("it is a host")
    }

    fn entry(&self, path: &str, value: &str) {
        for (path, number) in expand(path) {
            let number = number.unwrap_or_default();
            let (path, value) = (self.dir.path().join(&path), value.replace("{}", &number));
            let make_parent =
                || fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            if path.to_string_lossy().ends_with('/') {
                fs::create_dir_all(&path).expect("a folder");
            } else if let Some(target) = value.strip_prefix("-> ") {
                make_parent();
                std::os::unix::fs::symlink(target, &path).expect("a link");
            } else {
                make_parent();
                fs::write(&path, value.replace("\\n", "\n") + "\n").expect("a file");
            }
        }
    }

    fn remove(&self, path: &str) {
        for (path, _) in expand(path) {
            let at = self.dir.path().join(path);
            let is_folder = at.symlink_metadata().expect("it was there").is_dir();
            let gone = if is_folder { fs::remove_dir_all(&at) } else { fs::remove_file(&at) };
            gone.expect("it was there");
        }
    }

    fn lanes(&self, name: &str) {
        let file = fixtures().join(format!("../../../lanes/tests/fixtures/{name}.txt"));
        let text = fs::read_to_string(file).expect("a fixture of lanes");
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (path, value) = line.split_once(' ').unwrap_or((line, ""));
            self.entry(&format!("sys/devices/system/{path}"), value);
        }
    }
}

/// The ids of what is found.
pub(crate) fn found(facts: &Facts) -> BTreeSet<&'static str> {
    findings().filter(|one| one.check(facts).is_some()).map(|one| one.id).collect()
}

/// The names of the hosts, and what their first lines say is found on them.
pub(crate) fn hosts() -> Vec<(String, BTreeSet<String>)> {
    let files = fs::read_dir(fixtures()).expect("fixtures");
    let hosts = files.filter_map(|file| {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("text");
        let finds = text.lines().next()?.strip_prefix("# finds")?;
        let name = path.file_stem()?.to_string_lossy().into_owned();
        Some((name, finds.split_whitespace().map(str::to_owned).collect()))
    });
    hosts.collect()
}

/// Each path, and the last number in it.
fn expand(path: &str) -> Vec<(String, Option<String>)> {
    let Some((before, rest)) = path.split_once('{') else { return vec![(path.to_owned(), None)] };
    let (numbers, after) = rest.split_once('}').expect("a closing brace");
    let numbers: CpuSet = numbers.parse().expect("numbers");
    let after = expand(after);
    let one = |number: usize| {
        let path = move |(after, last): &(String, Option<String>)| {
            (format!("{before}{number}{after}"), last.clone().or(Some(number.to_string())))
        };
        after.iter().map(path).collect::<Vec<_>>()
    };
    numbers.iter().flat_map(one).collect()
}

/// Sets what a pointer names, and makes the objects on the way to it.
fn set(value: &mut Value, pointer: &str, new: Value) {
    let mut at = value;
    for part in pointer.split('/').skip(1) {
        let object = match at {
            Value::Object(object) => object,
            Value::Array(list) => {
                at = &mut list[part.parse::<usize>().expect("an index")];
                continue;
            }
            other => {
                *other = Value::Object(Map::new());
                other.as_object_mut().expect("it is one now")
            }
        };
        at = object.entry(part).or_insert(Value::Null);
    }
    *at = new;
}

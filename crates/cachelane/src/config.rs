//! The configuration of `cachelane up`: TOML files that are laid over each other, and what they ask
//! for.
//!
//! `tree` reads files and lays them over each other, `check` makes members of that, `claims` finds what
//! two of them want, `filters` has filter expressions compiled, `kinds` says what may be in a file, and
//! `print` writes what is there, what may be there, and a schema for editors.

mod check;
mod claims;
mod filters;
mod kinds;
mod print;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use filters::Findings;
pub(crate) use kinds::Kind;
pub(crate) use print::{default_file, dump, dump_json, origin, schema};
use tree::{Node, Table, lay_over};
pub(crate) use tree::{Origin, Trouble};

/// What comes with a package, for all hosts.
const VENDOR: &str = "/usr/lib/cachelane";
/// The administrator's file.
const MAIN: &str = "/etc/cachelane/config.toml";
/// More of the administrator's, or of a configuration manager's.
const DROP_INS: &str = "/etc/cachelane/conf.d";

/// What a configuration asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// By name.
    pub(crate) members: Vec<Member>,
    pub(crate) settings: Settings,
    /// Lanes other than the machine reports.
    pub(crate) lanes: Option<String>,
    /// The filter of the log.
    pub(crate) log: Option<String>,
}

/// How the daemon looks after its members; what is not set has a default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) silent_after: Option<Duration>,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) retry_at_most: Option<Duration>,
    pub(crate) watch: Option<Duration>,
}

/// One mechanism of a configuration: a subcommand and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Member {
    /// Such as `relay.web`.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// What the subcommand is given.
    pub(crate) args: Vec<String>,
    /// Of each key, what was set.
    pub(crate) values: Vec<(String, String)>,
    /// Where its table is.
    pub(crate) origin: Origin,
}

impl Member {
    /// Whether both are to listen on one address at least.
    pub(crate) fn shares_address_with(&self, other: &Member) -> bool {
        let listens = |(key, _): &&(String, String)| key == "listen";
        let theirs = || other.values.iter().filter(listens);
        let mut ours = self.values.iter().filter(listens);
        ours.any(|(_, one)| theirs().any(|(_, other)| one == other))
    }

    /// What a key was set to; none if it was not, or if it is a list.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        let mut all = self.values.iter().filter(|(name, _)| name == key);
        let (_, argument) = all.next().filter(|_| all.next().is_none())?;
        Some(argument.split_once('=').map_or(argument.as_str(), |(_, value)| value).to_owned())
    }
}

/// Where a configuration comes from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// Files, and folders of `*.toml`; none for those of this host.
    pub(crate) paths: Vec<PathBuf>,
    /// `KEY=VALUE`, over all files.
    pub(crate) flags: Vec<String>,
}

/// What all files said at one look, in their order; of a file that cannot be read, why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Texts {
    files: Vec<(PathBuf, Result<String, String>)>,
    /// What is wrong besides, such as a folder that cannot be read.
    troubles: Vec<Trouble>,
}

impl Texts {
    /// The files that were read, in their order.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(file, _)| file.as_path())
    }
}

/// A configuration that was read: what it asks for, and all that is wrong with it.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) tree: Table,
    pub(crate) texts: Texts,
    pub(crate) troubles: Vec<Trouble>,
    /// What could not be found out, and why.
    pub(crate) unchecked: Vec<Trouble>,
}

impl Sources {
    /// Reads all files, and makes nothing of them.
    pub(crate) fn read(&self) -> Texts {
        let (files, troubles) = self.files();
        let text = |file: PathBuf| {
            let text = read(&file).map_err(|error| error.to_string());
            (file, text)
        };
        Texts { files: files.into_iter().map(text).collect(), troubles }
    }

    /// Reads all of it.
    pub(crate) fn load(&self) -> Loaded {
        let texts = self.read();
        let mut troubles = texts.troubles.clone();
        let mut tree = Table::new();
        for (file, text) in &texts.files {
            let name = file.display().to_string();
            let nowhere = |message| Trouble { origin: None, message };
            match text {
                Ok(text) => {
                    let (table, wrong) = Node::parse(&name, text);
                    troubles.extend(wrong);
                    lay_over(&mut tree, table);
                }
                Err(error) => troubles.push(nowhere(format!("{name}: {error}"))),
            }
        }
        for flag in &self.flags {
            match Node::of_flag(flag) {
                Ok(table) => lay_over(&mut tree, table),
                Err(trouble) => troubles.push(trouble),
            }
        }
        let (config, Findings { wrong, unchecked }) = check::check(&tree);
        // What stands on a line that is no TOML was not meant as it was read.
        let lines: Vec<_> = troubles.iter().filter_map(line_of).collect();
        let is_new = |trouble: &Trouble| line_of(trouble).is_none_or(|line| !lines.contains(&line));
        let wrong: Vec<_> = wrong.into_iter().filter(is_new).collect();
        troubles.extend(wrong);
        troubles.sort();
        Loaded { config, tree, texts, troubles, unchecked }
    }

    /// The files in the order in which they are laid over each other.
    fn files(&self) -> (Vec<PathBuf>, Vec<Trouble>) {
        let mut troubles = Vec::new();
        let mut files = Vec::new();
        if self.paths.is_empty() {
            for (path, is_folder) in [(VENDOR, true), (MAIN, false), (DROP_INS, true)] {
                let path = Path::new(path);
                match is_folder {
                    true if path.is_dir() => files.extend(folder(path, &mut troubles)),
                    // One that is there and cannot be read is not passed over.
                    false if fs::symlink_metadata(path).is_ok() => files.push(path.to_owned()),
                    _ => {}
                }
            }
            if files.is_empty() {
                let message = format!(
                    "no configuration: {MAIN} is not there (expected it, or -c FILE; cachelane config \
                     default prints one to begin with)"
                );
                troubles.push(Trouble { origin: None, message });
            }
        }
        for path in &self.paths {
            match path.is_dir() {
                true => files.extend(folder(path, &mut troubles)),
                false => files.push(path.clone()),
            }
        }
        (files, troubles)
    }
}

/// A file's text. What may never end, or never begin, is none.
fn read(path: &Path) -> std::io::Result<String> {
    use std::io::{Error, Read as _};
    use std::os::unix::fs::OpenOptionsExt as _;

    const MOST: u64 = 1 << 20;
    // The other end of a pipe is not waited for.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > MOST {
        return Err(Error::other("expected a regular file of at most 1 MiB"));
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    Ok(text)
}

/// The `*.toml` of a folder, by name.
fn folder(path: &Path, troubles: &mut Vec<Trouble>) -> Vec<PathBuf> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => {
            let message = format!("{}: {error}", path.display());
            troubles.push(Trouble { origin: None, message });
            return Vec::new();
        }
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let is_hidden =
        |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
    let is_toml = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "toml") && !is_hidden(path)
    };
    let mut files: Vec<_> = paths.filter(is_toml).collect();
    files.sort();
    files
}

fn line_of(trouble: &Trouble) -> Option<(&str, usize)> {
    match trouble.origin.as_ref()? {
        Origin::File { path, line, .. } => Some((path, *line)),
        Origin::Flag => None,
    }
}

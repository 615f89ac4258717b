//! Looking at a host, and recording one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lanes::LaneMap;
use serde::{Deserialize, Serialize};

use crate::answers::ask;
use crate::error::Context as _;
use crate::tree::Tree;
use crate::{Answers, Error, ErrorKind, Facts, Result, Watching, XskAnswer, read};

/// The file of a record that has what no file of the host says.
const ANSWERS: &str = "cachelane-doctor.json";

/// The form of that file.
const SCHEMA: u32 = 1;

/// Where to look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this host, as the caller and its network namespace see it.
    Here {
        /// The process whose limits count; none: the caller's own.
        pid: Option<u32>,
    },
    /// At a host that was recorded into this folder.
    Recorded(PathBuf),
}

/// How to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookOptions {
    /// The lanes, such as `0-7|8-15`; none: as the machine reports them, or as they were given when
    /// it was recorded.
    pub lanes: Option<String>,
    /// For how long to watch this host's traffic; none: not at all. Looking takes no less.
    pub watch: Option<Duration>,
}

/// A host that was looked at.
#[derive(Debug)]
pub struct Host {
    /// What was found.
    pub facts: Facts,
    /// What could not be read, and why; in order.
    pub not_seen: Vec<String>,
    /// The lanes that were given.
    lanes: Option<String>,
    tree: Tree,
}

/// What a record has beside files.
#[derive(Debug, Serialize, Deserialize)]
struct Beside {
    schema: u32,
    /// The lanes that were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lanes: Option<String>,
    #[serde(flatten)]
    answers: Answers,
    #[serde(default)]
    not_seen: Vec<String>,
}

impl Host {
    /// Looks at a host. It takes what it can get; see [`not_seen`](Self::not_seen).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no such process, the folder has no record or the lanes
    /// are not the machine's, and what the system reports of files without which nothing can be
    /// said (the CPUs that are online).
    pub fn look(place: &Place, options: &LookOptions) -> Result<Self> {
        match place {
            Place::Here { pid } => Self::here(*pid, options),
            Place::Recorded(folder) => Self::recorded(folder, options),
        }
    }

    fn here(pid: Option<u32>, options: &LookOptions) -> Result<Self> {
        let tree = Tree::here();
        let name = pid.map_or("self".into(), |pid| pid.to_string());
        if !tree.at_path(&format!("proc/{name}/status")).exists() {
            let message = format!("there is no process {name} here");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let cpus = read::cpus(&tree, options.lanes.as_deref())?;
        let watching = options.watch.and_then(|time| Some((watching(&tree, &cpus.lanes)?, time)));
        let names = read::names(&tree);
        let mut answers = ask(&tree, &names, &cpus.lanes, &name);
        if pid.is_some() && matches!(answers.xsk, Some(XskAnswer::Memlock(_))) {
            // That is this process's own limit.
            answers.xsk = None;
        }
        let mut facts = facts(&tree, cpus, &names, &name, answers);
        // Last, so that all else is read meanwhile.
        let watch = watching.map(|(watching, time)| watching.until(time));
        facts.answers.watch = watch.and_then(|seen| {
            seen.inspect_err(|error| tree.note(format!("what traffic does: {error}"))).ok()
        });
        Ok(Self { facts, not_seen: tree.not_seen(), lanes: options.lanes.clone(), tree })
    }

    fn recorded(folder: &Path, options: &LookOptions) -> Result<Self> {
        let path = folder.join(ANSWERS);
        let text = fs::read(&path).map_err(|error| {
            let message =
                format!("{} is not a recorded host: {}", folder.display(), path.display());
            Error::caused(ErrorKind::Invalid, message, error)
        })?;
        let beside: Beside = serde_json::from_slice(&text).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("{}: {error}", path.display()))
        })?;
        if beside.schema != SCHEMA {
            let message = format!(
                "{}: schema {}, and this doctor reads schema {SCHEMA}",
                path.display(),
                beside.schema
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let tree = Tree::at(folder);
        let lanes = options.lanes.clone().or(beside.lanes);
        let cpus = read::cpus(&tree, lanes.as_deref())?;
        let names = read::names(&tree);
        let facts = facts(&tree, cpus, &names, "self", beside.answers);
        // What the recording could not read is absent here, and known by its own words.
        let mut not_seen = [beside.not_seen, tree.not_seen()].concat();
        not_seen.sort_unstable();
        not_seen.dedup();
        Ok(Self { facts, not_seen, lanes, tree })
    }

    /// Writes what was read into a folder that is not there yet, or is empty.
    ///
    /// A record has the files that findings look at, with the same paths, and a JSON file for what
    /// is no file. It has no addresses, no host name, no serial numbers, no names or arguments of
    /// processes but irqbalance's and the kernel's, and no names of cgroups. A device that is named
    /// after its hardware address (`enx…`) has another name there. Other names of devices stay.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the folder has something in it, and what the system reports.
    pub fn record(&self, folder: &Path) -> Result<()> {
        let what = || format!("cannot write {}", folder.display());
        fs::create_dir_all(folder).context(what())?;
        if fs::read_dir(folder).context(what())?.next().is_some() {
            let message =
                format!("{} has something in it: expected an empty folder", folder.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let names: Vec<&str> = self.facts.devices.iter().map(|one| one.name.as_str()).collect();
        let hide = |text: &str| hidden(text, &names);
        self.tree.write(folder, hide)?;
        let (answers, not_seen) = (self.facts.answers.clone(), self.not_seen.clone());
        let beside = Beside { schema: SCHEMA, lanes: self.lanes.clone(), answers, not_seen };
        let text = serde_json::to_string_pretty(&beside)
            .map_err(|error| Error::new(ErrorKind::Io, format!("{}: {error}", folder.display())))?;
        fs::write(folder.join(ANSWERS), hide(&text) + "\n").context(what())
    }
}

/// Starts to watch traffic; none, and a note, where that cannot be or could show nothing.
fn watching(tree: &Tree, lanes: &LaneMap) -> Option<Watching> {
    if lanes.lanes().len() < 2 {
        let why = "all CPUs are in one lane, and nothing can cross lanes";
        tree.note(format!("what traffic does: {why}; --lanes says that there are others"));
        return None;
    }
    let watching = Watching::start(lanes)
        .inspect_err(|error| tree.note(format!("what traffic does: {error}")))
        .ok()?;
    watching.not_seen().iter().for_each(|what| tree.note(what.clone()));
    Some(watching)
}

fn facts(tree: &Tree, cpus: crate::Cpus, names: &[String], pid: &str, answers: Answers) -> Facts {
    let mut devices = read::devices(tree, names);
    for device in &mut devices {
        // The kernel's own word is better than what sysfs hints at.
        let asked = answers.devices.get(&device.name).and_then(|answer| answer.kind.clone());
        device.kind = asked.or(device.kind.take());
    }
    let processes = processes(tree);
    Facts {
        cpus,
        devices,
        irqbalance: read::irqbalance(tree, &processes),
        napi_threads: read::napi_threads(tree, &processes),
        sysctls: read::sysctls(tree),
        softnet: read::softnet(tree),
        kernel: read::kernel(tree),
        process: read::process(tree, pid),
        answers,
    }
}

/// The processes whose names matter: nothing else of any process is kept.
fn processes(tree: &Tree) -> Vec<(u32, String)> {
    let matters = |name: &str| name == "irqbalance" || name.starts_with("napi/");
    let name = |pid: &u32| fs::read_to_string(tree.at_path(&format!("proc/{pid}/comm"))).ok();
    let found = tree.numbered("proc", "").into_iter().filter_map(|pid| {
        let found = name(&pid).filter(|name| matters(name.trim()))?;
        tree.text(&format!("proc/{pid}/comm"));
        Some((pid, found.trim().to_owned()))
    });
    found.collect()
}

/// A text without the hardware addresses that devices are named after: `enx` and twelve digits, as
/// udev makes them.
fn hidden(text: &str, names: &[&str]) -> String {
    let is_address = |name: &&&str| {
        let digits = name.strip_prefix("enx").or(name.strip_prefix("wlx"));
        digits.is_some_and(|digits| {
            digits.len() == 12 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    let named = names.iter().filter(is_address).enumerate();
    named.fold(text.to_owned(), |text, (number, name)| {
        text.replace(name, &format!("{}{number}", &name[..3]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_made_of_addresses_are_hidden_and_stay_apart() {
        let names = ["enp1s0", "enx001122334455", "enxaabbccddeeff", "enxtail"];
        let text = "enxaabbccddeeff-rx enx001122334455 enp1s0 enxtail";
        assert_eq!(hidden(text, &names), "enx1-rx enx0 enp1s0 enxtail");
    }
}

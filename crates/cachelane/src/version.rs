//! `cachelane --version -v`: what somebody who has a problem is asked for. Of the program as it was built,
//! and of the kernel that it runs on. It needs no privileges, and changes nothing.

use std::fs;

use doctor::Kernel;
use serde_json::{Map, Value, json};

use crate::terminal::clean;

/// The kernels that tests run on: the whole suite on the first, the rest by scripts/kernels/test. That older
/// ones will do is what their features say.
const TESTED: &str = "6.18, 6.12 and 7.3";
/// Of a file that is not there, or that this process may not read.
const NOT_SEEN: &str = "not seen";

/// Whether the arguments of a command that prints its version also ask for the details.
pub(crate) fn wants_details(args: impl IntoIterator<Item = String>) -> bool {
    options(args).any(|arg| match arg.strip_prefix("--") {
        Some(long) => long == "verbose",
        None => arg.contains('v'),
    })
}

/// Whether they ask for JSON.
pub(crate) fn wants_json(args: impl IntoIterator<Item = String>) -> bool {
    options(args).any(|arg| arg == "--json")
}

/// Everything that begins with a dash, before what says that nothing more does.
fn options(args: impl IntoIterator<Item = String>) -> impl Iterator<Item = String> {
    let before = args.into_iter().take_while(|arg| arg != "--");
    before.filter(|arg| arg.starts_with('-'))
}

/// `key: value`, a line each, below the version.
pub(crate) fn text() -> String {
    let head = format!("cachelane {}\n", env!("CARGO_PKG_VERSION"));
    let line = |(key, value): (&str, String)| format!("{key}: {}\n", clean(&value));
    head + &details().into_iter().map(line).collect::<String>()
}

/// The same as an object, with underscores in the keys.
pub(crate) fn json() -> Value {
    let mut all = Map::new();
    all.insert("schema".into(), json!(1));
    all.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    let details = details().into_iter();
    all.extend(details.map(|(key, value)| (key.replace(' ', "_"), value.into())));
    all.into()
}

fn details() -> Vec<(&'static str, String)> {
    let kernel = Kernel::here();
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    let machine = system.machine().to_string_lossy();
    let (major, minor) = bpf::libbpf_version();
    let mapped = fs::read_to_string("/proc/self/maps").ok();
    let library = |name| linked(mapped.as_deref(), name);
    // What builds a release sets it; `cargo install` of a folder knows of no commit.
    let commit = option_env!("CACHELANE_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map(|commit| ("commit", commit.to_owned()));
    let host = [
        ("features", if cfg!(feature = "measure") { "measure" } else { "none" }.to_owned()),
        ("target", env!("CACHELANE_TARGET").to_owned()),
        ("rustc", env!("CACHELANE_RUSTC").to_owned()),
        ("libbpf", format!("{major}.{minor}, {}", library("libbpf"))),
        ("libelf", library("libelf")),
        ("zlib", library("libz")),
        ("kernel", format!("{release} {machine}")),
        ("kernel expected", format!("{} or newer; tested on {TESTED}", Kernel::OLDEST)),
        ("btf", if kernel.btf { "/sys/kernel/btf/vmlinux" } else { NOT_SEEN }.to_owned()),
        ("lockdown", kernel.lockdown.clone().unwrap_or_else(|| NOT_SEEN.to_owned())),
        ("bpf jit", jit(&kernel, fs::read_to_string("/proc/sys/net/core/bpf_jit_enable").ok())),
    ];
    commit.into_iter().chain(host).collect()
}

/// The file of a library that is linked when the program starts. One that is not among the mapped files
/// is in the program itself.
fn linked(mapped: Option<&str>, name: &str) -> String {
    let Some(mapped) = mapped else { return NOT_SEEN.to_owned() };
    let mut paths = mapped.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_it = |path: &&str| {
        let file = path.rsplit('/').next().unwrap_or_default().strip_prefix(name);
        file.is_some_and(|rest| rest.starts_with(['.', '-']) && rest.contains("so"))
    };
    paths.find(is_it).map_or_else(|| "in this program".to_owned(), str::to_owned)
}

/// Whether the kernel compiles BPF programs: as the setting says that is seen in the initial network
/// namespace alone, or as the kernel is built.
fn jit(kernel: &Kernel, setting: Option<String>) -> String {
    let built = kernel.options.get("CONFIG_BPF_JIT").map(String::as_str);
    match (setting.as_deref().map(str::trim), built) {
        (Some("0"), _) => "off (net.core.bpf_jit_enable)".to_owned(),
        (Some(_), _) => "on".to_owned(),
        (None, Some("n")) => "off (CONFIG_BPF_JIT)".to_owned(),
        (None, _) => NOT_SEEN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_asked_for_in_every_way_that_verbose_is_written() {
        let wants = |line: &str| wants_details(line.split(' ').map(str::to_owned));
        for line in ["--version -v", "-V -v", "-vV", "-Vv", "-v --version", "-V --verbose", "-qVv"]
        {
            assert!(wants(line), "{line}");
        }
        for line in ["--version", "-V", "-V -- -v", "relay --version", "-V verbose", "-V --seven"] {
            assert!(!wants(line), "{line}");
        }
    }

    #[test]
    fn a_library_is_found_among_what_is_mapped() {
        let mapped = "55d0-55d1 r--p 00000000 08:01 77  /usr/bin/libelf-reader\n\
                      7f00-7f01 r--p 00000000 08:01 78  /usr/lib/libelf-0.188.so\n\
                      7f02-7f03 r--p 00000000 08:01 79  /usr/lib/libz.so.1.2.13\n\
                      7f04-7f05 rw-p 00000000 00:00 0\n";
        assert_eq!(linked(Some(mapped), "libelf"), "/usr/lib/libelf-0.188.so");
        assert_eq!(linked(Some(mapped), "libz"), "/usr/lib/libz.so.1.2.13");
        assert_eq!(linked(Some(mapped), "libbpf"), "in this program");
        assert_eq!(linked(None, "libbpf"), NOT_SEEN);
    }

    #[test]
    fn the_jit_is_told_as_far_as_it_is_seen() {
        let mut kernel = Kernel::default();
        let setting = |value: &str| Some(format!("{value}\n"));
        assert_eq!(jit(&kernel, setting("1")), "on");
        assert_eq!(jit(&kernel, setting("0")), "off (net.core.bpf_jit_enable)");
        assert_eq!(jit(&kernel, None), NOT_SEEN);
        kernel.options.insert("CONFIG_BPF_JIT".into(), "n".into());
        assert_eq!(jit(&kernel, None), "off (CONFIG_BPF_JIT)");
    }
}

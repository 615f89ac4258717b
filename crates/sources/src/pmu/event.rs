//! Events by name.

use std::fs;
use std::io;
use std::path::Path;

use perf_event::events::{Hardware, Raw, Software};
use trial::Better;

use super::fills;

/// Events that the kernel knows on every CPU, and those that it counts itself.
const HARDWARE: [(&str, Hardware); 6] = [
    ("cycles", Hardware::CPU_CYCLES),
    ("instructions", Hardware::INSTRUCTIONS),
    ("cache-references", Hardware::CACHE_REFERENCES),
    ("cache-misses", Hardware::CACHE_MISSES),
    ("branches", Hardware::BRANCH_INSTRUCTIONS),
    ("branch-misses", Hardware::BRANCH_MISSES),
];
const SOFTWARE: [(&str, Software); 3] = [
    ("context-switches", Software::CONTEXT_SWITCHES),
    ("cpu-migrations", Software::CPU_MIGRATIONS),
    ("page-faults", Software::PAGE_FAULTS),
];

/// Fills from another CPU's cache, by the event of the CPU at hand.
const FILLS: &str = "fills";

/// The events of the CPU at hand, by its own names.
const DEVICE: &str = "/sys/bus/event_source/devices/cpu";

/// What to count.
#[derive(Clone, Copy, Debug)]
pub(super) enum Code {
    Hardware(Hardware),
    Software(Software),
    Raw(Raw),
}

/// The good direction of an event, where its name says it.
pub(crate) fn better(name: &str) -> Option<Better> {
    let cost = name.ends_with("misses") || [FILLS, "cycles"].contains(&name);
    let software = SOFTWARE.iter().any(|(known, _)| *known == name);
    (cost || software).then_some(Better::Lower)
}

/// The names that can be asked for here, whether or not the CPU counts them.
pub(crate) fn names() -> Vec<String> {
    let known =
        HARDWARE.iter().map(|(name, _)| *name).chain(SOFTWARE.iter().map(|(name, _)| *name));
    let mut names: Vec<String> = known.chain([FILLS]).map(str::to_owned).collect();
    let mut own = of_device(Path::new(DEVICE));
    own.retain(|name| !names.contains(name));
    names.append(&mut own);
    names
}

/// Finds an event.
///
/// # Errors
/// What would be one, or why there is no such event here.
pub(super) fn find(name: &str) -> Result<Code, String> {
    find_in(Path::new(DEVICE), name)
}

fn find_in(device: &Path, name: &str) -> Result<Code, String> {
    if let Some((_, event)) = HARDWARE.iter().find(|(known, _)| *known == name) {
        return Ok(Code::Hardware(*event));
    }
    if let Some((_, event)) = SOFTWARE.iter().find(|(known, _)| *known == name) {
        return Ok(Code::Software(*event));
    }
    if name == FILLS {
        return fills().map(Code::Raw);
    }
    let own = of_device(device);
    if own.iter().any(|known| known == name) {
        return named(device, name).map(Code::Raw);
    }
    let config = name.strip_prefix('r').and_then(|hex| u64::from_str_radix(hex, 16).ok());
    config.map(|config| Code::Raw(Raw::new(config))).ok_or_else(|| {
        let names = match own.is_empty() {
            true => format!("{} has none", device.display()),
            false => own.join(", "),
        };
        let known: Vec<&str> = HARDWARE.iter().map(|(name, _)| *name).collect();
        let counted: Vec<&str> = SOFTWARE.iter().map(|(name, _)| *name).collect();
        format!(
            "expected {}, {}, {FILLS}, rHEX, or an event of this CPU ({names})",
            known.join(", "),
            counted.join(", ")
        )
    })
}

/// The events that a device has names for, without what says how to scale them.
fn of_device(device: &Path) -> Vec<String> {
    let entries = fs::read_dir(device.join("events")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.contains('.')).collect();
    names.sort();
    names
}

/// The codes of an event: its file says the fields, such as `event=0x3c,umask=0x01`, and files under
/// `format` say which bits those are, such as `config:0-7,32-35`.
fn named(device: &Path, name: &str) -> Result<Raw, String> {
    let read = |path: &Path| {
        let text = fs::read_to_string(path);
        text.map_err(|error: io::Error| format!("{}: {error}", path.display()))
    };
    let path = device.join("events").join(name);
    let text = read(&path)?;
    let mut configs = [0; 3];
    for term in text.trim().split(',') {
        let (field, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = value
            .strip_prefix("0x")
            .map_or_else(|| value.parse::<u64>().ok(), |hex| u64::from_str_radix(hex, 16).ok());
        let value = value.ok_or_else(|| {
            format!("{}: its field {term:?} is for you to say: write rHEX", path.display())
        })?;
        let format_path = device.join("format").join(field);
        let format = read(&format_path)?;
        spread(&mut configs, format.trim(), value)
            .ok_or_else(|| format!("{}: unexpected {:?}", format_path.display(), format.trim()))?;
    }
    let [config, config1, config2] = configs;
    Ok(Raw::new(config).config1(config1).config2(config2))
}

/// Puts a value's bits where a format says, the lowest first.
fn spread(configs: &mut [u64; 3], format: &str, mut value: u64) -> Option<()> {
    let (config, ranges) = format.split_once(':')?;
    let config = match config {
        "config" => 0,
        "config1" => 1,
        "config2" => 2,
        _ => return None,
    };
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        for bit in low..=high.min(63) {
            configs[config] |= (value & 1) << bit;
            value >>= 1;
        }
    }
    // What is left has no place.
    (value == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_names_are_turned_into_codes() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [
            // Of AMD's and Intel's.
            ("format/event", "config:0-7,32-35\n"),
            ("format/umask", "config:8-15\n"),
            ("format/inv", "config:23\n"),
            ("format/ldlat", "config1:0-15\n"),
            ("format/other", "config9:0\n"),
            ("events/a", "event=0x76\n"),
            ("events/b", "event=0x176,umask=0xc0,inv\n"),
            ("events/c", "event=0xcd,umask=0x1,ldlat=3\n"),
            ("events/c.unit", "x\n"),
            ("events/d", "event=?\n"),
            ("events/e", "umask=0x100\n"),
            ("events/f", "other=1\n"),
            ("events/g", "lacks=1\n"),
        ] {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let config = |name: &str| match find_in(dir.path(), name) {
            Ok(Code::Raw(raw)) => Ok((raw.config, raw.config1)),
            Ok(other) => panic!("{other:?}"),
            Err(reason) => Err(reason),
        };
        assert_eq!(config("a"), Ok((0x76, 0)));
        assert_eq!(config("b"), Ok((0x1_0080_c076, 0)));
        assert_eq!(config("c"), Ok((0x1cd, 3)));
        assert_eq!(config("r1644"), Ok((0x1644, 0)));
        for (name, word) in [
            ("d", "write rHEX"),
            ("e", "format/umask"),
            ("f", "config9"),
            ("g", "format/lacks"),
            ("c.unit", "expected cycles,"),
            ("nothing", "a, b, c, d, e, f, g"),
        ] {
            let reason = config(name).unwrap_err();
            assert!(reason.contains(word), "{name}: {reason}");
        }
        assert!(matches!(find_in(dir.path(), "cycles"), Ok(Code::Hardware(_))));
        assert_eq!(of_device(dir.path()).len(), 7);
    }
}

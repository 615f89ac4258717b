//! Real network cards for tests: two that the machine names, on a wire between them. Only a machine
//! that is there for that names any: `scripts/kernels/test` boots one.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lab::testing::{comes_true, root};
use lab::{End, Host, Link};

/// Devices with a wire between them, separated by a comma; they are moved into test hosts.
const NAMES: &str = "CACHELANE_CARDS";

/// The cards of the machine, one test's at a time.
static CARDS: Mutex<()> = Mutex::new(());

/// Both cards, each in a host.
pub(crate) struct Cards {
    pub(crate) link: Link,
    /// Their driver, as `ethtool -i` names it.
    pub(crate) driver: String,
    // Last: the next test begins once the hosts are gone.
    _turn: MutexGuard<'static, ()>,
}

impl Cards {
    /// Moves them into these hosts, with addresses and a carrier. None where the machine has none,
    /// which is said.
    pub(crate) fn take(test: &str, a: &Host, b: &Host) -> Option<Cards> {
        if !root(test) {
            return None;
        }
        let Ok(names) = std::env::var(NAMES) else {
            eprintln!("skipped: {test}: needs two network cards ({NAMES}: scripts/kernels/test)");
            return None;
        };
        let turn = CARDS.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, second) = names.split_once(',').expect("CACHELANE_CARDS=NAME,NAME");
        let driver = driver(first);
        let ends = [(a, first, 1), (b, second, 2)];
        let [a, b] = ends.map(|(host, name, number)| enter(host, name, number));
        let has_carrier = |end: &End| {
            let shown = end.host.ip(["-br", "link", "show", &end.device]).expect("ip");
            shown.contains("LOWER_UP")
        };
        assert!(comes_true(|| has_carrier(&a) && has_carrier(&b)), "{driver}: no carrier");
        Some(Cards { link: Link { a, b }, driver, _turn: turn })
    }
}

fn driver(name: &str) -> String {
    // A device of a host that is gone comes back in the kernel's own time.
    let link = format!("/sys/class/net/{name}/device/driver");
    assert!(comes_true(|| std::fs::exists(&link).unwrap_or(false)), "no card '{name}' is here");
    let target = std::fs::read_link(&link).expect("a driver");
    target.file_name().expect("a name").to_string_lossy().into_owned()
}

fn enter(host: &Host, name: &str, number: u8) -> End {
    driver(name);
    let flags = std::fs::read_to_string(format!("/sys/class/net/{name}/flags")).expect("flags");
    let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).expect("a number");
    assert_eq!(flags & 1, 0, "{name} is up: somebody uses it");
    let namespace = host.namespace_path().expect("a host of the lab");
    let moved = Command::new("ip").args(["link", "set", name, "netns"]).arg(namespace).status();
    assert!(moved.expect("ip").success(), "{name} cannot be moved");
    let shown = host.ip(["-br", "link", "show", name]).expect("ip");
    let mac = shown.split_whitespace().nth(2).and_then(|mac| mac.parse().ok()).expect("an address");
    let (v4, v6) = (
        [10, 84, 0, number].into(),
        [0xfd84, 0x6361, 0x6c61, 0, 0, 0, 0, u16::from(number)].into(),
    );
    let end = End { host: host.clone(), device: name.into(), mac, v4, v6 };
    // As a test before may have left it.
    host.ip(["link", "set", name, "mtu", "1500"]).expect("ip");
    // Not every driver has a choice.
    let _ = host.command("ethtool").args(["-L", name, "combined", "1"]).run();
    host.ip(["address", "add", &format!("{v4}/24"), "dev", name]).expect("ip");
    host.ip(["link", "set", name, "up"]).expect("ip");
    host.ip(["-6", "address", "flush", "dev", name]).expect("ip");
    end
}

//! `cachelane up --watch`: a configuration that changes without a signal, as in a volume of a ConfigMap.

mod common;

use std::process::Command;

use common::clients::echo;
use common::daemon::{Daemon, Scene, free, relay, serves};
use common::kubelet::Volume;
use common::text;
use lab::testing::comes_true;
use rustix::process::Signal;

/// A daemon that reads this folder, once all of its members run.
fn start(scene: &Scene, volume: &Volume, more: &[&str]) -> Daemon {
    let path = volume.path().to_str().expect("text");
    let mut command: Command = scene.command(&[&["up", "-c", path], more].concat());
    let daemon = Daemon::of(command.spawn().expect("it starts"));
    assert!(comes_true(|| scene.all_run()), "{:?}\n{}", scene.status(), daemon.log());
    daemon
}

fn engine(scene: &Scene, member: &str) -> String {
    let output = scene.run(&["knob", "get", "relay.engine", "--name", member]);
    text(&output.stdout).trim().to_owned()
}

#[test]
fn what_the_kubelet_puts_in_place_is_applied_without_a_signal() {
    let (to, [a, b]) = (echo(), [free(), free()]);
    let scene = Scene::new("");
    let first = relay("a", a, to, "engine = \"auto\"");
    let volume = Volume::new(&scene.place.path().join("etc"), &[("config.toml", &first)]);
    let mut daemon = start(&scene, &volume, &["--watch", "50ms"]);
    let before = scene.pid("relay.a");

    let second = relay("a", a, to, "engine = \"copy\"") + &relay("b", b, to, "");
    volume.write(&[("config.toml", &second)]);
    assert!(comes_true(|| serves(b)), "{}", daemon.log());
    assert!(comes_true(|| engine(&scene, "relay.a") == "copy"), "{}", daemon.log());
    assert_eq!(scene.pid("relay.a"), before, "a knob needs no new process");

    // Another file of the same ConfigMap, laid over the first.
    let over = ("over.toml", "[relay.a]\nengine = \"splice\"\n");
    volume.write(&[("config.toml", &second), over]);
    assert!(comes_true(|| engine(&scene, "relay.a") == "splice"), "{}", daemon.log());
    // And away with it: the kubelet leaves no link that leads nowhere, but is not waited for.
    volume.write(&[("config.toml", &first)]);
    std::fs::remove_file(volume.path().join("over.toml")).expect("a link");
    assert!(comes_true(|| engine(&scene, "relay.a") == "auto"), "{}", daemon.log());
    assert!(comes_true(|| !serves(b)), "{}", daemon.log());
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", daemon.log());
}

#[test]
fn a_wrong_file_changes_nothing_and_is_said_once_not_at_each_look() {
    let (to, [a, b]) = (echo(), [free(), free()]);
    let scene = Scene::new("");
    let right = relay("a", a, to, "");
    let volume = Volume::new(&scene.place.path().join("etc"), &[("config.toml", &right)]);
    // In the file, not on the command line.
    let watched = format!("{right}[up]\nwatch = \"20ms\"\n");
    let daemon = start(&scene, &volume, &["--set", "up.watch=20ms"]);
    let before = scene.status();
    volume.write(&[("config.toml", "[relay.a]\nlisten = \"nowhere\"\ntoo = 1\n")]);
    let refused = "nothing is changed: the configuration has ";
    assert!(daemon.says(refused), "{}", daemon.log());

    // The right one is applied after it; until then there were looks at the wrong one.
    let looked = std::time::Instant::now();
    assert!(comes_true(|| looked.elapsed().as_millis() > 500), "time goes by");
    assert_eq!(scene.status(), before);
    assert!(serves(a));
    volume.write(&[("config.toml", &(watched + &relay("b", b, to, "")))]);
    assert!(comes_true(|| serves(b)), "{}", daemon.log());
    assert_eq!(daemon.log().matches(refused).count(), 1, "{}", daemon.log());
    assert_eq!(daemon.log().matches("unknown key too").count(), 1, "{}", daemon.log());
    assert_eq!(scene.pid("relay.a"), before["relay.a"].pid, "it is as it was");
}

#[test]
fn without_it_files_that_change_are_left_until_a_signal_comes() {
    let (to, [a, b]) = (echo(), [free(), free()]);
    let scene = Scene::new("");
    let first = relay("a", a, to, "");
    let volume = Volume::new(&scene.place.path().join("etc"), &[("config.toml", &first)]);
    let daemon = start(&scene, &volume, &[]);
    volume.write(&[("config.toml", &(first + &relay("b", b, to, "")))]);
    // SIGUSR1 is a turn each, which is when it would look.
    for _ in 0..20 {
        daemon.signal(Signal::USR1);
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(daemon.says("INFO relay.a running"), "{}", daemon.log());
    assert_eq!(scene.status().len(), 1, "{}", daemon.log());
    let default = scene.run(&["config", "default"]);
    assert!(
        text(&default.stdout).contains("0s for SIGHUP alone [default: 0s]"),
        "{}",
        text(&default.stdout)
    );
    assert!(!daemon.log().contains("the configuration has changed"), "{}", daemon.log());
    daemon.signal(Signal::HUP);
    assert!(comes_true(|| serves(b)), "{}", daemon.log());
}

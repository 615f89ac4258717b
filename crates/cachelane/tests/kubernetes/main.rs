//! packaging/kubernetes and packaging/oci: Kubernetes' schemas accept the manifests, and what they ask for
//! runs as a kubelet would have it run. What is run is read from them: arguments, capabilities, mounts.
//!
//! `make peers` installs what this needs: the schemas, and what builds, unpacks and runs images.

#[path = "../common/mod.rs"]
mod common;
mod manifests;
mod node;
mod schemas;
mod trials;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use common::clients::{Storm, Tally, echo};
use common::daemon::serves;
use common::text;
use lab::testing::{comes_true, root};
use lab::{BridgeOptions, Host, Lab, LinkOptions};
use manifests::{Manifests, configuration, texts};
use node::{Image, Node};

#[test]
fn root_the_image_has_nothing_that_runs_but_the_command() {
    if !root("root_the_image_has_nothing_that_runs_but_the_command") {
        return;
    }
    let image = Image::built();
    let programs = image.files().filter(|path| {
        let head = fs::read(image.root().join(path)).expect("a file");
        let is_library = path.to_string_lossy().contains(".so");
        !is_library && (head.starts_with(b"\x7fELF") || head.starts_with(b"#!"))
    });
    assert_eq!(programs.collect::<Vec<_>>(), [Path::new("usr/bin/cachelane")]);
    let words: Vec<_> = image.files().map(|path| path.display().to_string()).collect();
    for library in ["libelf.so.1", "libc.so.6", "ld-linux"] {
        assert!(words.iter().any(|file| file.contains(library)), "{library}: {words:?}");
    }
    let licences = words.iter().filter(|file| file.ends_with("/copyright")).count();
    assert!(licences >= 4, "{words:?}");
    assert_eq!(image.entrypoint(), ["/usr/bin/cachelane", "up"]);

    // And it is the same when it is built again.
    let again = Image::build("again");
    assert_eq!(again.digest(), image.digest());
}

#[test]
fn root_the_command_runs_in_the_image() {
    if !root("root_the_command_runs_in_the_image") {
        return;
    }
    let lab = Lab::new("image").expect("a lab");
    let node = Node::new(lab.host("node").expect("a host"), &configuration(""));
    let daemons = Manifests::of("");
    for (args, expected) in [
        (&["--version"][..], concat!("cachelane ", env!("CARGO_PKG_VERSION"))),
        (&["config", "check"], "/etc/cachelane/config.toml: bridge.containers, metrics\n"),
    ] {
        let output = node.output(&daemons.pod("DaemonSet"), args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert!(text(&output.stdout).starts_with(expected), "{args:?}: {output:?}");
    }
    // It may write nowhere: neither here nor in the kernel's settings.
    let output = node.output(&daemons.pod("DaemonSet"), &["man", "/pages"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(text(&output.stderr).contains("Read-only file system"), "{output:?}");
}

/// A bridge of this name on this host, with two hosts behind it.
fn bridge(lab: &Lab, name: &str) -> Host {
    let [a, b] = ["a", "b"].map(|name| lab.host(name).expect("a host"));
    let bridge = lab.bridge("node", &[&a, &b], BridgeOptions::default()).expect("a bridge");
    let host = bridge.own.host.clone();
    for args in [["br0", "down", "", ""], ["br0", "name", name, ""], [name, "up", "", ""]] {
        let args = args.into_iter().filter(|word| !word.is_empty());
        host.ip(["link", "set"].into_iter().chain(args)).expect("ip");
    }
    host
}

#[test]
fn root_a_node_runs_what_the_manifests_say_and_applies_a_new_config_map() {
    if !root("root_a_node_runs_what_the_manifests_say_and_applies_a_new_config_map") {
        return;
    }
    let lab = Lab::new("daemonset").expect("a lab");
    let host = bridge(&lab, "cni0");
    let to = host.run(echo).expect("the host");
    let with_relay = configuration(&to.to_string());
    let node = Node::new(host.clone(), &configuration(""));
    let daemons = Manifests::of("");
    let pod = daemons.pod("DaemonSet");
    let (is_ready, lives) = (pod.probe("readinessProbe"), pod.probe("livenessProbe"));
    let mut running = node.start(&pod);
    let container = running.container();
    assert!(comes_true(|| container.exec(&is_ready).success()), "{}", running.log());
    assert!(container.exec(&lives).success(), "{}", running.log());
    assert!(!running.log().contains("some members will fail"), "{}", running.log());
    assert!(running.says("cni0: 2 of 2 ports accelerated"), "{}", running.log());
    assert_eq!(container.capabilities(), pod.capabilities());

    // The file of the ConfigMap, replaced as the kubelet does it; nobody sends a signal.
    node.write(&with_relay);
    let relay = ([127, 0, 0, 1], 8080).into();
    let serves = || host.run(|| serves(relay)).expect("the host");
    assert!(comes_true(serves), "{}", running.log());
    assert!(comes_true(|| container.exec(&is_ready).success()), "{}", running.log());
    let storm = host.run(|| Storm::paced(relay, Duration::from_millis(10))).expect("the host");
    let moved = |page: String| {
        let name = "cachelane_relay_up_bytes_total{";
        page.lines().any(|line| line.starts_with(name) && !line.ends_with(" 0"))
    };
    assert!(comes_true(|| moved(scrape(&host))), "{}", running.log());
    let Tally { served, refused, reset } = storm.end();
    assert!(served > 0 && refused == 0 && reset == 0, "{served} {refused} {reset}");

    container.signal("TERM");
    assert_eq!(running.ended(), Some(0), "{}", running.log());
    assert_eq!(node.sockets(), Vec::<String>::new(), "{}", running.log());
}

#[test]
fn root_probes_tell_a_stuck_daemon_from_trouble_and_a_killed_one_is_replaced() {
    if !root("root_probes_tell_a_stuck_daemon_from_trouble_and_a_killed_one_is_replaced") {
        return;
    }
    let lab = Lab::new("probes").expect("a lab");
    let host = lab.host("node").expect("a host");
    let to = host.run(echo).expect("the host");
    let right = configuration(&to.to_string());
    let trouble = "[lend.x]\ninterface = \"none\"\nsocket = \"/run/cachelane/x\"\n";
    let node = Node::new(host.clone(), &format!("{right}{trouble}"));
    let daemons = Manifests::of("");
    let pod = daemons.pod("DaemonSet");
    let (is_ready, lives) = (pod.probe("readinessProbe"), pod.probe("livenessProbe"));
    let mut running = node.start(&pod);
    let container = running.container();
    assert!(running.says("lend.x: "), "{}", running.log());
    assert!(comes_true(|| container.exec(&lives).success()), "{}", running.log());
    assert!(!container.exec(&is_ready).success(), "{}", running.log());
    container.signal("STOP");
    assert!(!container.exec(&lives).success(), "it is stopped");
    container.signal("CONT");
    assert!(comes_true(|| container.exec(&lives).success()), "{}", running.log());

    // Once it is killed, there are sockets of the same names in its place.
    node.write(&right);
    container.signal("KILL");
    assert_eq!(running.ended(), Some(128 + 9), "{}", running.log());
    assert!(!node.sockets().is_empty());
    let running = node.start(&pod);
    let container = running.container();
    assert!(comes_true(|| container.exec(&is_ready).success()), "{}", running.log());
    let relay = ([127, 0, 0, 1], 8080).into();
    assert!(host.run(|| serves(relay)).expect("the host"), "{}", running.log());
}

/// What the comments of the manifest say of other members.
#[test]
fn root_lend_and_steer_run_in_a_pod_that_has_what_they_need_besides() {
    if !root("root_lend_and_steer_run_in_a_pod_that_has_what_they_need_besides") {
        return;
    }
    let lab = Lab::new("others").expect("a lab");
    let [host, far] = ["node", "far"].map(|name| lab.host(name).expect("a host"));
    let options = LinkOptions { wire_like: true, ..LinkOptions::default() };
    let [lent, steered] = [(); 2].map(|()| lab.link(&far, &host, options.clone()).expect("a link"));
    let config = |priority: &str| {
        format!(
            "[lend.x]\ninterface = \"{}\"\nsocket = \"/run/cachelane/x.lend\"\nudp-port = 53\n\
             [steer.in]\ninterface = \"{}\"\nforce = true\n{priority}\n",
            lent.b.device, steered.b.device
        )
    };
    let node = Node::new(host, &config(""));
    let daemons = Manifests::of("");
    let mut pod = daemons.pod("DaemonSet");
    let is_ready = pod.probe("readinessProbe");
    let unseen = "this process does not see the kernel's threads";
    let running = node.start(&pod);
    assert!(running.says("CAP_NET_RAW") && running.says(unseen), "{}", running.log());
    assert!(!running.container().exec(&is_ready).success());
    drop(running);

    let capabilities = &mut pod.container["securityContext"]["capabilities"]["add"];
    let capabilities = capabilities.as_array_mut().expect("a list");
    capabilities.extend(["NET_RAW", "IPC_LOCK"].map(Into::into));
    node.write(&config("priority = 0"));
    let mut running = node.start(&pod);
    let container = running.container();
    assert!(comes_true(|| container.exec(&is_ready).success()), "{}", running.log());
    container.signal("TERM");
    assert_eq!(running.ended(), Some(0), "{}", running.log());

    pod.spec["hostPID"] = true.into();
    node.write(&config(""));
    let running = node.start(&pod);
    let container = running.container();
    // A kernel with CONFIG_RT_GROUP_SCHED gives no priority to threads of a control group.
    let refused = || running.log().contains("may not change the kernel's threads");
    let is_so = || container.exec(&is_ready).success() || refused();
    assert!(comes_true(is_so) && !running.log().contains(unseen), "{}", running.log());
}

/// The node's metrics.
fn scrape(host: &Host) -> String {
    let get = || {
        let mut client = TcpStream::connect(("127.0.0.1", 21_646))?;
        client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut page = String::new();
        client.read_to_string(&mut page).map(|_| page)
    };
    host.run(get).expect("the host").unwrap_or_default()
}

/// The capabilities of each kind of member in the table of docs/up.md: what it needs, and all that it has
/// a use for.
fn documented() -> BTreeMap<String, [BTreeSet<String>; 2]> {
    let page = texts("docs/up.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| member | needs")).skip(2);
    let names = |cell: &str| -> BTreeSet<String> {
        let words = cell.split(|c: char| !c.is_ascii_uppercase() && c != '_');
        words.filter(|word| word.starts_with("CAP_")).map(str::to_owned).collect()
    };
    let rows = rows.take_while(|line| line.starts_with('|')).map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let needs = names(cells[2]);
        let all = &needs | &names(cells[3]);
        (cells[1].to_owned(), [needs, all])
    });
    rows.collect()
}

#[test]
fn the_pods_may_do_what_the_configuration_needs_and_no_more() {
    let documented = documented();
    assert_eq!(documented.len(), 5, "{documented:?}");
    let daemons = Manifests::of("");
    let pod = daemons.pod("DaemonSet");
    let have = pod.capabilities();
    let [mut needs, mut uses] = [BTreeSet::new(), BTreeSet::new()];
    for kind in ["bridge", "metrics"] {
        needs.extend(documented[kind][0].clone());
        uses.extend(documented[kind][1].clone());
    }
    assert!(needs.is_subset(&have), "{needs:?}: {have:?}");
    assert!(have.is_subset(&uses), "{have:?}: {uses:?}");
    let trials = Manifests::of("trial");
    assert!(trials.pod("Job").capabilities().is_empty());
    for pod in [pod, trials.pod("Job")] {
        let security = &pod.container["securityContext"];
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault");
        assert!(security.get("privileged").is_none());
        assert_eq!(security["capabilities"]["drop"], serde_json::json!(["ALL"]));
        assert_eq!(pod.spec["automountServiceAccountToken"], false);
        let host = ["hostPID", "hostIPC"].map(|key| pod.spec[key].as_bool().unwrap_or_default());
        assert_eq!(host, [false, false]);
    }
}

#[test]
fn the_manifests_fit_each_other_and_the_command() {
    let (daemons, trials) = (Manifests::of(""), Manifests::of("trial"));
    let (daemon, trial) = (daemons.pod("DaemonSet"), trials.pod("Job"));
    let labels = &daemons.one("DaemonSet")["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&daemons.one("DaemonSet")["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&daemons.one("Service")["spec"]["selector"], labels);
    // An image of this version, of the same name everywhere.
    for pod in [&daemon, &trial] {
        let image = concat!("cachelane:", env!("CARGO_PKG_VERSION"));
        assert_eq!(pod.container["image"], image);
        assert_eq!(
            pod.spec["serviceAccountName"],
            daemons.one("ServiceAccount")["metadata"]["name"]
        );
    }
    // A trial is of nodes that run it, and finds its processes.
    let run = "/run/cachelane";
    assert_eq!(trial.host_path(run), Some(run));
    assert_eq!(daemon.host_path(run), Some(run));
    let selected = &trial.spec["nodeSelector"];
    assert_eq!(selected["cachelane/run"], daemon.spec["nodeSelector"]["cachelane/run"]);
    let apart = &trial.spec["affinity"]["podAntiAffinity"];
    let apart = &apart["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"];
    let job = trials.one("Job");
    assert_eq!(apart["matchLabels"], job["spec"]["template"]["metadata"]["labels"]);
    assert_eq!(job["spec"]["completions"], job["spec"]["parallelism"]);
    // Connections have their time: of the example, and of a relay that does not say.
    let grace = daemon.spec["terminationGracePeriodSeconds"].as_u64().expect("seconds");
    for drain in [60, 30] {
        assert!(grace > drain, "{grace}");
    }
    let example = configuration("127.0.0.1:1");
    assert!(example.contains("drain-timeout = \"60s\""), "{example}");
}

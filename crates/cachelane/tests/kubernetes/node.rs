//! A node, as far as a pod sees it: a network namespace, and folders in the place of the node's. Its
//! containers are run by runc from what the manifests say, with the defaults of containerd; there are no
//! limits of resources.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use lab::Host;
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};

use crate::common::daemon::Daemon;
use crate::common::kubelet::Volume;
use crate::common::{PROGRAM, Place};
use crate::manifests::{Pod, sources};

/// What Debian's packages of container tools (golang-github-containers-common) refuse by default.
const SECCOMP: &str = "/usr/share/containers/seccomp.json";

/// An image of the command under test, as an OCI layout and unpacked.
pub(crate) struct Image {
    dir: PathBuf,
}

impl Image {
    /// One for all tests.
    pub(crate) fn built() -> &'static Image {
        static BUILT: OnceLock<Image> = OnceLock::new();
        BUILT.get_or_init(|| Image::build("image"))
    }

    /// Builds one, in a folder of this name.
    pub(crate) fn build(name: &str) -> Image {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a folder");
        let mut build = Command::new(sources().join("scripts/oci"));
        build.args(["of", PROGRAM]).arg(dir.join("layout")).env("SOURCE_DATE_EPOCH", "1700000000");
        let layout = format!("{}:{}", dir.join("layout").display(), env!("CARGO_PKG_VERSION"));
        let mut unpack = Command::new("umoci");
        unpack.args(["unpack", "--image", &layout]).arg(dir.join("bundle"));
        for command in [&mut build, &mut unpack] {
            let output = command.output();
            let output = output.unwrap_or_else(|e| panic!("{command:?}: {e} (make peers)"));
            assert!(output.status.success(), "{command:?}: {output:?}");
        }
        Image { dir }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("bundle/rootfs")
    }

    /// What tells it from all others.
    pub(crate) fn digest(&self) -> String {
        let index = fs::read_to_string(self.dir.join("layout/index.json")).expect("an index");
        let index: Value = serde_json::from_str(&index).expect("JSON");
        index["manifests"][0]["digest"].as_str().expect("a digest").to_owned()
    }

    /// What it runs by itself.
    pub(crate) fn entrypoint(&self) -> Vec<String> {
        let config = fs::read_to_string(self.dir.join("bundle/config.json")).expect("its config");
        let config: Value = serde_json::from_str(&config).expect("JSON");
        serde_json::from_value(config["process"]["args"].clone()).expect("a list")
    }

    /// All of its files, by their paths in it.
    pub(crate) fn files(&self) -> impl Iterator<Item = PathBuf> {
        let root = self.root();
        let mut folders = vec![root.clone()];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one")) {
                match entry.file_type().expect("a type") {
                    one if one.is_dir() => folders.push(entry.path()),
                    // What the runtime makes to mount something there.
                    _ if entry.metadata().expect("it is there").len() == 0 => {}
                    _ => files.push(entry.path().strip_prefix(&root).expect("in it").to_owned()),
                }
            }
        }
        files.sort();
        files.into_iter()
    }
}

pub(crate) struct Node {
    place: Arc<Place>,
    host: Host,
    config: Volume,
    containers: AtomicU32,
}

/// A container while it runs; killed when it is dropped.
pub(crate) struct Running {
    daemon: Daemon,
    container: Container,
}

/// One container, for the runtime.
#[derive(Clone)]
pub(crate) struct Container {
    host: Host,
    /// Where the runtime notes what runs: it is there for as long as there are containers.
    place: Arc<Place>,
    id: String,
}

impl Node {
    /// A node on this host, for which there is a ConfigMap with this configuration.
    pub(crate) fn new(host: Host, config: &str) -> Node {
        let place = Arc::new(Place::new());
        let etc = place.path().join("node/etc");
        fs::create_dir_all(&etc).expect("a folder");
        // Every node has its own.
        let id = std::process::id();
        let number = u64::from(id) << 32 | u64::from(unique());
        fs::write(etc.join("machine-id"), format!("{number:032x}\n")).expect("a file");
        let config = Volume::new(&place.path().join("config"), &[("config.toml", config)]);
        Node { place, host, config, containers: AtomicU32::new(0) }
    }

    /// Changes the ConfigMap.
    pub(crate) fn write(&self, config: &str) {
        self.config.write(&[("config.toml", config)]);
    }

    /// The control sockets that are there.
    pub(crate) fn sockets(&self) -> Vec<String> {
        let entries = fs::read_dir(self.place.path().join("node/run/cachelane")).expect("a folder");
        let names = entries.map(|one| one.expect("one").file_name().to_string_lossy().into_owned());
        names.filter(|name| name.ends_with(".sock") || name.ends_with(".notify")).collect()
    }

    /// Starts a pod.
    pub(crate) fn start(&self, pod: &Pod) -> Running {
        let (container, mut command) = self.prepare(pod, &pod.args());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.host.run(move || command.spawn()).expect("the host").expect("runc runs");
        Running { daemon: Daemon::of(child), container }
    }

    /// What a pod's container prints with other arguments, once it has ended.
    pub(crate) fn output(&self, pod: &Pod, args: &[&str]) -> Output {
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        let (_, mut command) = self.prepare(pod, &args);
        self.host.run(move || command.output()).expect("the host").expect("runc runs")
    }

    /// The log of a pod's container, once it has ended, as the kubelet has it: what it writes to stdout and
    /// to stderr, in one file.
    pub(crate) fn log(&self, pod: &Pod, args: &[String]) -> (ExitStatus, String) {
        let (container, mut command) = self.prepare(pod, args);
        let path = self.place.path().join(format!("{}.log", container.id));
        let log = File::create(&path).expect("a file");
        command.stdout(log.try_clone().expect("a file")).stderr(log);
        let status = self.host.run(move || command.status()).expect("the host").expect("runc runs");
        (status, fs::read_to_string(path).expect("the log"))
    }

    /// A container of this pod, and the command that runs it.
    fn prepare(&self, pod: &Pod, args: &[String]) -> (Container, Command) {
        let number = self.containers.fetch_add(1, Relaxed);
        let id = format!("cachelane-test-{}-{}-{number}", std::process::id(), unique());
        let bundle = self.place.path().join(&id);
        fs::create_dir(&bundle).expect("a folder");
        let config = self.config_of(pod, args).to_string();
        fs::write(bundle.join("config.json"), config).expect("a file");
        let container =
            Container { host: self.host.clone(), place: Arc::clone(&self.place), id: id.clone() };
        let mut command = container.runtime();
        command.arg("run").arg("--bundle").arg(bundle).arg(id).stdin(Stdio::null());
        (container, command)
    }

    /// What a runtime is told of it (config.json of the OCI's runtime specification).
    fn config_of(&self, pod: &Pod, args: &[String]) -> Value {
        // Of what else there may be, nothing is known here.
        assert_eq!(pod.spec["hostNetwork"], true);
        assert!(pod.spec.get("hostIPC").is_none() && pod.container.get("env").is_none());
        let security = &pod.container["securityContext"];
        let capabilities = pod.capabilities();
        let image = Image::built();
        let mut entrypoint = image.entrypoint();
        entrypoint.truncate(1);
        entrypoint.extend_from_slice(args);
        let mut namespaces = vec!["mount", "ipc", "uts", "pid"];
        namespaces.retain(|one| *one != "pid" || pod.spec["hostPID"] != true);
        let namespaces: Vec<_> = namespaces.iter().map(|one| json!({"type": one})).collect();
        json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": security["runAsUser"], "gid": 0},
                "args": entrypoint,
                "env": ["PATH=/usr/bin"],
                "cwd": "/",
                "capabilities": {
                    "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
                },
                "noNewPrivileges": security["allowPrivilegeEscalation"] == false,
            },
            "root": {"path": image.root(), "readonly": security["readOnlyRootFilesystem"]},
            "mounts": self.mounts(pod),
            "linux": {
                "namespaces": namespaces,
                "seccomp": seccomp(&capabilities),
                "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                    "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi",
                    "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys",
                    "/proc/sysrq-trigger"],
            },
        })
    }

    fn mounts(&self, pod: &Pod) -> Vec<Value> {
        let fresh = |at: &str, kind: &str, options: &[&str]| {
            json!({"destination": at, "type": kind,
            "source": kind, "options": options})
        };
        let mut all = vec![
            fresh("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            fresh("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
            fresh("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
            fresh("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        ];
        for mount in pod.container["volumeMounts"].as_array().expect("mounts") {
            assert!(mount.get("subPath").is_none(), "{mount} is never replaced");
            let volume = pod.volume(mount);
            let source = match volume.get("configMap") {
                Some(_) => self.config.path().to_owned(),
                None => self.of_node(&volume["hostPath"]),
            };
            let mode = if mount["readOnly"] == true { "ro" } else { "rw" };
            all.push(json!({"destination": mount["mountPath"], "type": "bind", "source": source,
                "options": ["rbind", mode]}));
        }
        all
    }

    /// What is at this path of the node; missing things are made where the manifest asks for that.
    fn of_node(&self, path: &Value) -> PathBuf {
        let inside = path["path"].as_str().expect("a path").trim_start_matches('/');
        let full = self.place.path().join("node").join(inside);
        match path["type"].as_str() {
            Some("DirectoryOrCreate") => fs::create_dir_all(&full).expect("a folder"),
            Some("Directory") => assert!(full.is_dir(), "{path}"),
            Some("File") => assert!(full.is_file(), "{path}"),
            other => panic!("{other:?} of {path}"),
        }
        full
    }
}

impl Running {
    pub(crate) fn container(&self) -> Container {
        self.container.clone()
    }

    pub(crate) fn log(&self) -> String {
        self.daemon.log()
    }

    pub(crate) fn says(&self, words: &str) -> bool {
        self.daemon.says(words)
    }

    /// Waits for its end; its exit code.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        self.daemon.ended()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.container.runc(&["delete", "--force"], &[]);
    }
}

impl Container {
    fn runtime(&self) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.place.path().join("runc"));
        command
    }

    fn runc(&self, before: &[&str], after: &[String]) -> Output {
        let mut command = self.runtime();
        command.args(before).arg(&self.id).args(after);
        self.host.run(move || command.output()).expect("the host").expect("runc runs")
    }

    /// Runs this in it, as the kubelet does for a probe.
    pub(crate) fn exec(&self, command: &[String]) -> ExitStatus {
        assert!(!command.is_empty());
        let output = self.runc(&["exec"], command);
        match output.status.code() {
            Some(code) => ExitStatus::from_raw(code << 8),
            None => output.status,
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let output = self.runc(&["kill"], &[name.to_owned()]);
        assert!(output.status.success(), "{output:?}");
    }

    /// What its first process may do.
    pub(crate) fn capabilities(&self) -> BTreeSet<String> {
        let state = self.runc(&["state"], &[]);
        let state: Value = serde_json::from_slice(&state.stdout).expect("JSON");
        let status = format!("/proc/{}/status", state["pid"]);
        let status = fs::read_to_string(status).expect("it runs");
        let mask = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).expect("a mask");
        let mask = u64::from_str_radix(mask.trim(), 16).expect("a number");
        let set = CapabilitySet::from_bits_retain(mask);
        set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect()
    }
}

/// A number that nothing else of this process has.
fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// `RuntimeDefault` for a container with these capabilities: as the packages have it, and with what
/// containerd's own allows besides for CAP_BPF and CAP_PERFMON (contrib/seccomp/seccomp_default.go).
fn seccomp(capabilities: &BTreeSet<String>) -> Value {
    let profile = fs::read_to_string(SECCOMP);
    let profile = profile.unwrap_or_else(|error| panic!("{SECCOMP}: {error} (make peers)"));
    let profile: Value = serde_json::from_str(&profile).expect("JSON");
    let names = |list: &Value| -> Vec<String> {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let granted: Vec<_> = [("CAP_BPF", "bpf"), ("CAP_PERFMON", "perf_event_open")]
        .into_iter()
        .filter(|(capability, _)| capabilities.contains(*capability))
        .map(|(_, call)| call.to_owned())
        .collect();
    let mut calls = Vec::new();
    for rule in profile["syscalls"].as_array().expect("rules") {
        let (includes, excludes) = (&rule["includes"], &rule["excludes"]);
        let arches = names(&includes["arches"]);
        let applies = names(&includes["caps"]).iter().all(|one| capabilities.contains(one))
            && !names(&excludes["caps"]).iter().any(|one| capabilities.contains(one))
            && (arches.is_empty() || arches.iter().any(|one| one == arch));
        let of: Vec<_> =
            names(&rule["names"]).into_iter().filter(|call| !granted.contains(call)).collect();
        if applies && !of.is_empty() {
            let mut call = json!({"names": of, "action": rule["action"]});
            for key in ["args", "errnoRet"] {
                if !rule[key].is_null() {
                    call[key] = rule[key].clone();
                }
            }
            calls.push(call);
        }
    }
    if !granted.is_empty() {
        calls.push(json!({"names": granted, "action": "SCMP_ACT_ALLOW"}));
    }
    json!({"defaultAction": profile["defaultAction"], "defaultErrnoRet": profile["defaultErrnoRet"],
        "syscalls": calls})
}

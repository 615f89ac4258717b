//! The manifests, as the files say.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::text;

/// The top of the sources.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn texts(path: &str) -> String {
    fs::read_to_string(sources().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A program of the Python environment that has Kubernetes' schemas.
pub(crate) fn tool(name: &str) -> Command {
    let path = sources().join("target/tools/kubernetes/bin").join(name);
    assert!(path.exists(), "{} is not there (make peers)", path.display());
    Command::new(path)
}

/// The configuration that is shipped, with the relay that is its example where there is a backend for it.
pub(crate) fn configuration(backend: &str) -> String {
    let shipped = texts("packaging/kubernetes/config.toml");
    if backend.is_empty() {
        return shipped;
    }
    let (rest, example) = shipped.split_once("# [relay.web]").expect("an example");
    let example = format!("# [relay.web]{example}");
    let lines = example.lines().map(|line| line.strip_prefix("# ").expect("a comment"));
    let example = lines.collect::<Vec<_>>().join("\n");
    let of_cluster = "web.default.svc.cluster.local:80";
    assert!(example.contains(of_cluster), "{example}");
    format!("{rest}\n{}\n", example.replace(of_cluster, backend))
}

/// What a folder's kustomization has, as `kubectl apply -k` sends it but for names of namespaces.
pub(crate) struct Manifests(pub(crate) Vec<Value>);

/// A pod, with the one container that it has.
pub(crate) struct Pod {
    pub(crate) spec: Value,
    pub(crate) container: Value,
}

impl Manifests {
    pub(crate) fn of(folder: &str) -> Manifests {
        let folder = sources().join("packaging/kubernetes").join(folder);
        let kustomization = yaml(&[folder.join("kustomization.yaml")]).remove(0);
        let names = |list: &Value| -> Vec<PathBuf> {
            let list = list.as_array().into_iter().flatten();
            list.map(|name| folder.join(name.as_str().expect("a name"))).collect()
        };
        let mut all = yaml(&names(&kustomization["resources"]));
        for map in kustomization["configMapGenerator"].as_array().into_iter().flatten() {
            let data = names(&map["files"]).into_iter().map(|path| {
                let name = path.file_name().expect("a name").to_string_lossy().into_owned();
                (name, Value::from(fs::read_to_string(&path).expect("a file")))
            });
            let data: serde_json::Map<_, _> = data.collect();
            let metadata = json!({"name": map["name"]});
            all.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}));
        }
        Manifests(all)
    }

    /// The only one of this kind.
    pub(crate) fn one(&self, kind: &str) -> &Value {
        let mut all = self.0.iter().filter(|one| one["kind"] == kind);
        let one = all.next().expect(kind);
        assert!(all.next().is_none(), "{kind}");
        one
    }

    /// The pod of this controller.
    pub(crate) fn pod(&self, kind: &str) -> Pod {
        let spec = self.one(kind)["spec"]["template"]["spec"].clone();
        let containers = spec["containers"].as_array().expect("containers");
        assert_eq!(containers.len(), 1);
        Pod { container: containers[0].clone(), spec }
    }
}

impl Pod {
    /// Its container's arguments.
    pub(crate) fn args(&self) -> Vec<String> {
        words(&self.container["args"])
    }

    /// The command of a probe.
    pub(crate) fn probe(&self, name: &str) -> Vec<String> {
        words(&self.container[name]["exec"]["command"])
    }

    /// What it may do, with the kernel's names.
    pub(crate) fn capabilities(&self) -> BTreeSet<String> {
        let added = &self.container["securityContext"]["capabilities"]["add"];
        let added = added.as_array().into_iter().flatten();
        added.map(|name| format!("CAP_{}", name.as_str().expect("a name"))).collect()
    }

    /// The volume that is mounted there.
    pub(crate) fn volume(&self, mount: &Value) -> &Value {
        let volumes = self.spec["volumes"].as_array().expect("volumes");
        volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("its volume")
    }

    /// What of the node is mounted there.
    pub(crate) fn host_path(&self, path: &str) -> Option<&str> {
        let mounts = self.container["volumeMounts"].as_array().expect("mounts");
        let mount = mounts.iter().find(|mount| mount["mountPath"] == path)?;
        self.volume(mount)["hostPath"]["path"].as_str()
    }
}

fn words(list: &Value) -> Vec<String> {
    let list = list.as_array().expect("a list").iter();
    list.map(|word| word.as_str().expect("text").to_owned()).collect()
}

/// All documents of these files.
pub(crate) fn yaml(files: &[PathBuf]) -> Vec<Value> {
    const READ: &str = "import json, sys, yaml\n\
        json.dump([one for file in sys.argv[1:] for one in yaml.safe_load_all(open(file))], sys.stdout)";
    let output = tool("python").args(["-c", READ]).args(files).output().expect("it runs");
    assert!(output.status.success(), "{files:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

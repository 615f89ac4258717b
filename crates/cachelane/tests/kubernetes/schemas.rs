//! Kubernetes' schemas, which need no cluster and no network, and what of kustomize has no schema.

use std::fs;
use std::process::{Command, Output};

use crate::common::{Place, text};
use crate::manifests::{Manifests, configuration, sources, texts, tool, yaml};

/// The oldest version that has everything in the manifests without being asked (`backoffLimitPerIndex`),
/// and a new one.
const VERSIONS: [&str; 2] = ["1.29", "1.37"];

/// What the validator says of this file, for this version; unknown fields are errors.
fn validate(place: &Place, manifests: &str, version: &str) -> Output {
    fs::write(place.path().join("manifests.yaml"), manifests).expect("a file");
    let mut command = tool("kubernetes-validate");
    command.args(["--strict", "-k", version, "manifests.yaml"]).current_dir(place.path());
    command.output().expect("it runs")
}

/// All manifests of a folder as one text; JSON is YAML.
fn all(folder: &str) -> String {
    let all = Manifests::of(folder).0;
    all.iter().map(|one| format!("---\n{one}\n")).collect()
}

#[test]
fn the_schemas_accept_every_manifest() {
    let place = Place::new();
    for folder in ["", "trial"] {
        for version in VERSIONS {
            let output = validate(&place, &all(folder), version);
            assert!(output.status.success(), "{folder} {version}: {output:?}");
            let passed = text(&output.stdout).matches(" passed for resource ").count();
            assert_eq!(passed, Manifests::of(folder).0.len(), "{output:?}");
        }
    }
}

#[test]
fn the_schemas_refuse_what_is_misspelt_missing_or_of_another_type() {
    let place = Place::new();
    let right = all("");
    for (from, to) in [
        ("\"hostPID\":", "\"hostPid\":"),
        ("\"drop\":[\"ALL\"]", "\"drop\":\"ALL\""),
        ("\"mountPath\":", "\"path\":"),
        ("\"maxUnavailable\":1", "\"maxUnavailable\":true"),
        ("\"port\":21646", "\"port\":\"metrics\""),
    ] {
        assert!(right.contains(from), "{from}: {right}");
        let output = validate(&place, &right.replace(from, to), VERSIONS[1]);
        assert_eq!(output.status.code(), Some(1), "{to}: {output:?}");
    }
    let trial =
        all("trial").replace("\"backoffLimitPerIndex\":0", "\"backoffLimitPerIndex\":\"no\"");
    assert_eq!(validate(&place, &trial, VERSIONS[1]).status.code(), Some(1));
    // The version is told apart: this field came later.
    assert_eq!(validate(&place, &all("trial"), "1.26").status.code(), Some(1));
}

/// Every manifest is named by a kustomization, and what it says of configuration is right.
#[test]
fn kustomizations_name_every_file_and_the_configuration_is_right() {
    let mut named = Vec::new();
    for folder in ["", "trial/"] {
        let path = format!("packaging/kubernetes/{folder}kustomization.yaml");
        let kustomization = yaml(&[sources().join(&path)]).remove(0);
        assert_eq!(kustomization["namespace"], "cachelane", "{path}");
        let generated = kustomization["configMapGenerator"].as_array().into_iter().flatten();
        let generated = generated.flat_map(|map| map["files"].as_array().expect("files"));
        let resources = kustomization["resources"].as_array().expect("resources");
        let files = resources.iter().chain(generated).map(|file| file.as_str().expect("text"));
        named.extend(files.map(|file| format!("{folder}{file}")));
        named.push(format!("{folder}kustomization.yaml"));
    }
    let here = sources().join("packaging/kubernetes");
    let mut there = Vec::new();
    for folder in ["", "trial/"] {
        let entries =
            fs::read_dir(here.join(folder)).expect("a folder").map(|one| one.expect("one"));
        let files = entries.filter(|entry| entry.path().is_file());
        there.extend(files.map(|file| format!("{folder}{}", file.file_name().to_string_lossy())));
    }
    named.sort();
    there.sort();
    assert_eq!(named, there);

    let manifests = Manifests::of("");
    let data =
        manifests.one("ConfigMap")["data"]["config.toml"].as_str().expect("a file").to_owned();
    assert_eq!(data, configuration(""));
    let place = Place::new();
    for (config, members) in [
        (data, "bridge.containers, metrics"),
        (
            configuration("web.default.svc.cluster.local:80"),
            "bridge.containers, metrics, relay.web",
        ),
    ] {
        fs::write(place.path().join("config.toml"), config).expect("a file");
        let output = place.command(&["config", "check", "-c", "config.toml"]).output();
        assert_eq!(text(&output.expect("it runs").stdout), format!("config.toml: {members}\n"));
    }
}

#[test]
fn kustomize_makes_of_it_what_the_schemas_accept() {
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("skipped: kustomizations are not built: kubectl is not there");
        return;
    }
    let place = Place::new();
    for folder in ["packaging/kubernetes", "packaging/kubernetes/trial"] {
        let mut kubectl = Command::new("kubectl");
        let output =
            kubectl.arg("kustomize").arg(sources().join(folder)).output().expect("it runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
        let checked = validate(&place, text(&output.stdout), VERSIONS[1]);
        assert!(checked.status.success(), "{}", text(&checked.stderr));
        if folder.ends_with("kubernetes") {
            // The pods find it by the name that they know, also after a change.
            assert!(
                text(&output.stdout).contains("kind: ConfigMap\nmetadata:\n  name: cachelane\n")
            );
        }
    }
}

#[test]
fn the_page_names_what_is_there() {
    let page = texts("docs/kubernetes.md");
    let shown: Vec<_> = page.split("packaging/kubernetes").skip(1).collect();
    assert!(shown.len() > 3, "{page}");
    for label in ["cachelane/run=yes", "cachelane/trial=yes"] {
        assert!(page.contains(label), "{label}");
    }
    let job = Manifests::of("trial");
    let name =
        job.one("Job")["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"].clone();
    assert!(
        page.contains(&format!("-l app.kubernetes.io/name={}", name.as_str().expect("text"))),
        "{page}"
    );
}

//! What `cachelane --version -v` says of the build: the target, and the compiler.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo::rustc-env=CACHELANE_TARGET={}", variable("TARGET"));
    // As it says itself: the version, with the commit and the date of a released one.
    let said = Command::new(variable("RUSTC")).arg("--version").output();
    let said = said.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let version = said.unwrap_or_default();
    println!("cargo::rustc-env=CACHELANE_RUSTC={}", version.trim_start_matches("rustc "));
}

//! What `cachelane --version -v` says of the build: the target, and the compiler. And the library that
//! `cachelane borrow` starts programs with (`clients/pcap`), which the command carries.

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
    library();
}

/// Builds it where the command includes it from.
fn library() {
    const SOURCES: &str = "../../clients/pcap";
    println!("cargo::rerun-if-changed={SOURCES}");
    println!("cargo::rerun-if-changed=../../clients/c/cachelane_lend.h");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let target = format!("{out}/libcachelane-pcap.so");
    let made = Command::new("make")
        .args(["--silent", "-C", SOURCES, &format!("OUT={out}"), &target])
        .args(["CFLAGS=-O2 -Wall -Wextra", "MAKEFLAGS="])
        .status();
    match made {
        Ok(status) if status.success() => {}
        made => panic!("building {target} failed (are make, cc and libpcap-dev there?): {made:?}"),
    }
}

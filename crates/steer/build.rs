//! Builds the BPF objects and their skeletons.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // Debian's clang does not look in the multiarch folder when the target is BPF.
    let include = format!("-I/usr/include/{arch}-linux-gnu");
    // The second is for measuring against.
    let least = env::var_os("CARGO_FEATURE_MEASURE").map(|_| "least");
    for name in ["steer"].into_iter().chain(least) {
        let source = format!("src/bpf/{name}.bpf.c");
        if let Err(error) = SkeletonBuilder::new()
            .source(&source)
            // v3 has the atomics that return what was there before.
            .clang_args([include.as_str(), "-Wall", "-Werror", "-mcpu=v3"])
            .build_and_generate(out.join(format!("{name}.skel.rs")))
        {
            panic!("building {source} failed (are clang and libelf-dev there?): {error:?}");
        }
    }
    println!("cargo::rerun-if-changed=src/bpf");
}

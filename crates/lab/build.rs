//! Builds the BPF objects of the stock sockmap peer, of the frame generators and of the program
//! that passes all.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    // Debian's clang does not look in the multiarch folder when the target is BPF.
    let include = format!("-I/usr/include/{arch}-linux-gnu");
    for name in ["generator", "live", "pass", "sockmap_stock"] {
        let source = format!("src/bpf/{name}.bpf.c");
        if let Err(error) = SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{name}.bpf.o")))
            .clang_args([include.as_str(), "-Wall", "-Werror"])
            .build()
        {
            panic!("building {source} failed (are clang and libelf-dev there?): {error:?}");
        }
    }
    println!("cargo::rerun-if-changed=src/bpf");
}

//! Builds the BPF objects and their skeletons.

fn main() {
    // v3 has the atomics that return what was there before.
    let flags = ["-mcpu=v3"];
    bpf::build::skeletons(&["steer"], &flags);
    // To measure against.
    if std::env::var_os("CARGO_FEATURE_MEASURE").is_some() {
        bpf::build::skeletons(&["least"], &flags);
    }
}

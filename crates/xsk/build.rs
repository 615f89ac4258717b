//! Builds the BPF object and its skeleton.

fn main() {
    // v3 has the atomics that return what was there before.
    bpf::build::skeletons(&["live", "xsk"], &["-mcpu=v3"]);
}

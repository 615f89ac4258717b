//! Builds the BPF objects and their skeletons.

fn main() {
    // v3 has the atomics that return what was there before.
    bpf::build::skeletons(&["steer", "least"], &["-mcpu=v3"]);
}

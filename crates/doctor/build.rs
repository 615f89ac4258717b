//! Builds the BPF programs that watch traffic, and their skeleton.

fn main() {
    bpf::build::skeletons(&["watch"], &[]);
}

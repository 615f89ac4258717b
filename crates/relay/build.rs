//! Builds the BPF object and its skeleton.

fn main() {
    bpf::build::skeletons(&["sockmap"], &[]);
}

//! Builds the BPF programs that steering's and doctor's are measured against.

fn main() {
    // They parse packets and sockets with steering's headers.
    println!("cargo::rerun-if-changed=../steer/src/bpf");
    bpf::build::skeletons(&["least", "bare"], &["-mcpu=v3", "-I../steer/src/bpf"]);
    bpf::build::objects(&["empty"], &[]);
}

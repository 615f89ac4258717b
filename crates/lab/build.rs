//! Builds the BPF objects.

fn main() {
    bpf::build::objects(&["generator", "pass", "sockmap_stock"], &[]);
}

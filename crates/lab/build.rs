//! Builds the BPF objects.

fn main() {
    bpf::build::objects(&["generator", "live", "pass", "sockmap_stock"], &[]);
}

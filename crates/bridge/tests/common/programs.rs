//! BPF programs of somebody else, for ports and members.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::Net;

/// Both drop the frames of one of our protocols, and let the others pass.
const SOURCE: &str = r#"
#include <asm/byteorder.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>

#define SEC(name) __attribute__((section(name), used))
#define DROPPED __constant_htons(0x88b6)

static inline __attribute__((always_inline)) int is_dropped(void *data, void *end)
{
	struct ethhdr *eth = data;

	return (void *)(eth + 1) <= end && eth->h_proto == DROPPED;
}

SEC("xdp")
int drop_xdp(struct xdp_md *ctx)
{
	return is_dropped((void *)(long)ctx->data, (void *)(long)ctx->data_end) ? XDP_DROP : XDP_PASS;
}

SEC("tc")
int drop_tc(struct __sk_buff *skb)
{
	/* TC_ACT_SHOT, TC_ACT_UNSPEC */
	return is_dropped((void *)(long)skb->data, (void *)(long)skb->data_end) ? 2 : -1;
}

char LICENSE[] SEC("license") = "GPL";
"#;

/// The compiled programs, in the sections `xdp` and `tc`.
pub struct Programs {
    object: PathBuf,
}

impl Programs {
    /// Compiles them with the compiler that this crate was built with.
    pub fn build(net: &Net) -> Self {
        let (source, object) = (net.file("drop.bpf.c"), net.file("drop.bpf.o"));
        fs::write(&source, SOURCE).unwrap();
        let arch = std::env::consts::ARCH;
        let output = Command::new("clang")
            .args(["-O2", "-g", "-target", "bpf", "-Wall", "-Werror", "-c"])
            .arg(format!("-I/usr/include/{arch}-linux-gnu"))
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .output()
            .expect("clang, which has built this crate");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { object }
    }

    pub fn path(&self) -> String {
        self.object.display().to_string()
    }
}

/* SPDX-License-Identifier: GPL-2.0-only */
/* Nothing but an XDP program on a device: every packet goes on to the kernel. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp.frags")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Sends every frame on to the other end of one device, and nothing else: the least that a fast path
 * can do.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* The device. */
const volatile __u32 to;

SEC("tcx/ingress")
int bare_redirect(struct __sk_buff *skb)
{
	return bpf_redirect_peer(to, 0);
}

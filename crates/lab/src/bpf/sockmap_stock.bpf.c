/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Sockmap as it comes: what one socket receives is redirected to another, always. A peer for
 * benches to compare with; nothing of cachelane itself uses it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

enum place { SOURCE, TARGET };

/* Whose numbers Rust has as well. */
const volatile enum place shared;

/* By place. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} sockets SEC(".maps");

/* Into the target's receive queue. */
SEC("sk_skb/verdict")
int redirect_ingress(struct __sk_buff *skb)
{
	return bpf_sk_redirect_map(skb, &sockets, TARGET, BPF_F_INGRESS);
}

/* Out of the target, to its peer. */
SEC("sk_skb/verdict")
int redirect_egress(struct __sk_buff *skb)
{
	return bpf_sk_redirect_map(skb, &sockets, TARGET, 0);
}

char LICENSE[] SEC("license") = "GPL";

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Programs that do nothing, where the programs of doctor's watching are: what a program costs there
 * at the least.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

SEC("raw_tp/sock_recv_length")
int empty_received(void *context)
{
	return 0;
}

SEC("raw_tp/consume_skb")
int empty_consumed(void *context)
{
	return 0;
}

SEC("raw_tp/kfree_skb")
int empty_dropped(void *context)
{
	return 0;
}

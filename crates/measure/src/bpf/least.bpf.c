/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The least that programs at these places can do: read a packet's flow and send it to a CPU; read a
 * socket's flow and hash it. For measuring what the rest costs.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"
#include "packet.h"
#include "socket.h"
#include "steer.h"

char LICENSE[] SEC("license") = "GPL";

/* Packets go to the CPU whose number is their flow's peer's port modulo this. */
const volatile __u32 cpus;

/* Has a value be there, although nobody looks at it. */
#define needed(value) asm volatile("" : : "r"(&(value)) : "memory")

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} entries SEC(".maps");

SEC("xdp.frags")
int least_steer(struct xdp_md *context)
{
	struct tuple tuple = {};

	if (parse((void *)(long)context->data, (void *)(long)context->data_end, &tuple) != REASONS)
		return XDP_PASS;
	needed(tuple);
	return bpf_redirect_map(&entries, tuple.source % cpus, XDP_PASS);
}

static __always_inline int on_socket(struct bpf_raw_tracepoint_args *context)
{
	struct tuple tuple = {};
	__u32 hash;

	if (!counts_for(context) || !tuple_of_socket((struct sock *)context->args[0], &tuple))
		return 0;
	hash = hash_of(&tuple);
	needed(hash);
	return 0;
}

SEC("raw_tp/sock_recv_length")
int least_recv(struct bpf_raw_tracepoint_args *context)
{
	return on_socket(context);
}

SEC("raw_tp/sock_send_length")
int least_send(struct bpf_raw_tracepoint_args *context)
{
	return on_socket(context);
}

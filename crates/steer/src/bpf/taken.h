/* SPDX-License-Identifier: GPL-2.0-only */
/* What tells where packets are once they are sent: what a CPU's queue takes or has no room for,
 * what the CPU takes from it, and the end of a NAPI poll. */
#ifndef CACHELANE_STEER_TAKEN_H
#define CACHELANE_STEER_TAKEN_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "order.h"

/* The CPU whose queue a cpumap thread serves: the one that it runs on, but when that goes offline
 * the kernel moves the thread to another. */
static __always_inline __u32 served_by(const struct task_struct *thread)
{
	__u32 here = bpf_get_smp_processor_id(), cpu = 0;
	struct target *target = bpf_map_lookup_elem(&targets, &here);
	char name[sizeof(thread->comm)];

	if (target && target->task == (__u64)thread)
		return here;
	/* "cpumap/CPU/map:ID" (kernel/bpf/cpumap.c). */
	if (bpf_core_read(name, sizeof(name), &thread->comm))
		return here;
#pragma unroll
	for (int at = 0; at < 7; at++)
		if (name[at] != "cpumap/"[at])
			return here;
#pragma unroll
	for (int at = 7; at < 11; at++) {
		if (name[at] < '0' || name[at] > '9')
			break;
		cpu = cpu * 10 + name[at] - '0';
	}
	return cpu;
}

static __always_inline int on_taken(struct xdp_md *context)
{
	const struct task_struct *thread = (const struct task_struct *)bpf_get_current_task();
	__u32 cpu = served_by(thread), queue = 0, at;
	struct target *target = bpf_map_lookup_elem(&targets, &cpu);
	struct taken *count;

	/* Also one that is waited for; of a CPU that is left it is not known how long it is there.
	 */
	if (target && !is_left(target) && target->task != (__u64)thread)
		target->task = (__u64)thread;
	if (queues > 1) {
		__u32 *meta = (void *)(long)context->data_meta;

		if ((void *)(meta + 1) > (void *)(long)context->data)
			return XDP_PASS;
		queue = *meta;
		bpf_xdp_adjust_meta(context, sizeof(*meta));
	}
	at = cpu * queues + queue;
	count = bpf_map_lookup_elem(&taken, &at);
	if (count)
		count->packets++;
	if (queues > 1) {
		at = cpus * queues + cpu;
		count = bpf_map_lookup_elem(&taken, &at);
		if (count)
			count->packets++;
	}
	return XDP_PASS;
}

/* On the CPU that a packet was sent to, in the thread of its cpumap. */
SEC("xdp.frags/cpumap")
int cachelane_taken(struct xdp_md *context)
{
	return on_taken(context);
}

/* (map, packets, lost, CPU): packets went from a CPU's bulk queue into another CPU's queue. */
SEC("raw_tp/xdp_cpumap_enqueue")
int cachelane_queued(struct bpf_raw_tracepoint_args *context)
{
	__u32 zero = 0, lost = context->args[2], at;
	struct settings *given;
	struct sent *there;
	struct own *here;

	if (!lost)
		return 0;
	given = bpf_map_lookup_elem(&settings, &zero);
	here = ours();
	if (!given || !here || (__u32)context->args[0] != given->entries_id)
		return 0;
	/* A bulk queue is emptied at the end of each poll, so all that is in it is of one queue. */
	at = here->poll.queue * cpus + (__u32)context->args[3];
	there = bpf_map_lookup_elem(&sent, &at);
	if (there)
		there->packets -= lost;
	here->counts.overflows += lost;
	return 0;
}

/* (NAPI, packets, budget): a poll is over. If a packet took the kernel path since the last one on
 * this CPU, it was in this. */
SEC("raw_tp/napi_poll")
int cachelane_polled(struct bpf_raw_tracepoint_args *context)
{
	struct own *here = ours();
	struct passed *of_queue;
	__u32 queue;

	if (!here || !here->poll.passed)
		return 0;
	queue = here->poll.passed - 1;
	of_queue = bpf_map_lookup_elem(&passed, &queue);
	if (of_queue && !leaves_some((struct napi_struct *)context->args[0], context->args[1],
				     context->args[2]))
		*(volatile __u32 *)&of_queue->done = poll_of(here);
	here->poll.passed = 0;
	here->poll.number++;
	return 0;
}

#endif

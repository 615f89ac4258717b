/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Receive flow steering. The record side sees where local sockets receive and send, and writes the
 * CPU into the flow's record; the steer side, on the device, sends a flow's packets to that CPU.
 *
 * A flow moves from where its packets go to somewhere else only when all that it has there is
 * delivered: order.h knows that.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"
#include "maps.h"
#include "order.h"
#include "packet.h"
#include "record.h"
#include "rules.h"
#include "steer.h"
#include "taken.h"

char LICENSE[] SEC("license") = "GPL";

/* A flow's packet takes the kernel path. */
static __always_inline int pass(struct own *here, __u32 hash, __u32 queue, enum reason reason)
{
	struct passed *of_queue = bpf_map_lookup_elem(&passed, &queue);
	__u32 poll = poll_of(here);

	here->counts.kernel[reason & REASON_MASK]++;
	here->poll.passed = queue + 1;
	if (!of_queue)
		return XDP_PASS;
	if (is_over(of_queue, poll))
		__builtin_memset(of_queue->bits, 0, sizeof(of_queue->bits));
	of_queue->in = poll;
	of_queue->bits[PASSED_WORD(hash)] |= PASSED_BIT(hash);
	return XDP_PASS;
}

/* The CPU to which the flow of this hash is to go: its record's, if flows can be sent there and it
 * is another one. */
static __always_inline __u32 wanted(const struct record_set *set, __u32 hash, enum reason *reason)
{
	__u32 way = find(set->words, tag_of(hash, cpu_mask), cpu_mask), cpu;
	struct target *target;

	*reason = REASON_UNKNOWN;
	if (way == WAYS)
		return KERNEL_PATH;
	cpu = *(volatile __u32 *)&set->words[way & (WAYS - 1)] & cpu_mask;
	/* It is where it is to go. Its CPU's queue would only cost a switch to its thread. */
	*reason = REASON_HERE;
	if (cpu == bpf_get_smp_processor_id())
		return KERNEL_PATH;
	*reason = REASON_TARGET;
	target = bpf_map_lookup_elem(&targets, &cpu);
	return target && target->active ? cpu : KERNEL_PATH;
}

/* Writes the queue's number in front of the packet. */
static __always_inline bool mark(struct xdp_md *context, __u32 queue)
{
	__u32 *meta;

	if (bpf_xdp_adjust_meta(context, -(int)sizeof(*meta)))
		return false;
	meta = (void *)(long)context->data_meta;
	if ((void *)(meta + 1) > (void *)(long)context->data)
		return false;
	*meta = queue;
	return true;
}

/* Sends a packet to a CPU; not XDP_REDIRECT if it cannot be. */
static __always_inline int send(struct xdp_md *context, struct own *here, __u32 queue, __u32 cpu,
				__u32 *tail)
{
	__u32 at = queue * cpus + cpu;
	struct sent *count = bpf_map_lookup_elem(&sent, &at);

	if (!count || bpf_redirect_map(&entries, cpu, XDP_PASS) != XDP_REDIRECT)
		return XDP_PASS;
	if (queues > 1) {
		if (!mark(context, queue))
			return XDP_PASS;
		here->poll.queue = queue;
	}
	*tail = ++count->packets;
	return XDP_REDIRECT;
}

static __always_inline struct flow_set *flows_of(__u32 hash, __u32 queue)
{
	__u32 at = queue * (set_mask + 1) + (hash & set_mask);

	return bpf_map_lookup_elem(&flows, &at);
}

/* A place for a flow that is to leave the kernel path: one that is free, or whose flow has nothing
 * underway. WAYS if there is none now, or it may not leave. */
static __always_inline __u32 room(const struct own *here, const struct flow_set *set, __u32 hash,
				  __u32 queue)
{
	__u32 way;

	if (keep_order && !may_leave(here, hash, queue))
		return WAYS;
	way = find_empty(set->words);
	if (way < WAYS)
		return way;
	way = victim(set->words, hash) & (WAYS - 1);
	return has_delivered(set->words[way] & cpu_mask, set->tails[way], queue) ? way : WAYS;
}

/* The flow at this place takes the kernel path from now on; the last one takes the place. */
static __always_inline void forget(struct flow_set *set, __u32 way)
{
	__u32 last = (find_empty(set->words) - 1) & (WAYS - 1);

	set->words[way] = set->words[last];
	set->tails[way] = set->tails[last];
	set->words[last] = 0;
}

/* A packet of a flow that takes the kernel path is to go to a CPU. It does, if nothing of the flow
 * can be overtaken, and there is a place for it. */
static __always_inline int leave_kernel(struct xdp_md *context, struct own *here,
					struct flow_set *set, __u32 hash, __u32 queue, __u32 to)
{
	__u32 way = room(here, set, hash, queue);

	if (way == WAYS) {
		here->counts.held++;
		return pass(here, hash, queue, REASON_ORDER);
	}
	way &= WAYS - 1;
	if (send(context, here, queue, to, &set->tails[way]) != XDP_REDIRECT)
		return pass(here, hash, queue, REASON_UNSENT);
	set->words[way] = tag_of(hash, cpu_mask) | to;
	here->counts.steered++;
	here->counts.moves++;
	return XDP_REDIRECT;
}

/* Whether flows wait no longer for what they have at a CPU. */
static __always_inline bool gives_up(struct own *here, __u32 cpu, __u32 queue)
{
	struct target *target = bpf_map_lookup_elem(&targets, &cpu);
	__u64 time = now();
	struct sent *row = look_at(here, cpu, queue, time);

	if ((target && is_left(target)) || without_lease(time) >= (__s64)patience_ticks)
		return true;
	return row && is_given_up(row, time, room_of_queue, stall_ticks, patience_ticks);
}

/* A packet of a flow whose last one went to another CPU than `to`, which may be KERNEL_PATH. It
 * goes there, or, if it would overtake that one, to the same. */
static __always_inline int leave_cpu(struct xdp_md *context, struct own *here, struct flow_set *set,
				     __u32 hash, __u32 queue, __u32 way, __u32 to,
				     enum reason reason)
{
	__u32 from = set->words[way] & cpu_mask;
	bool moves = true;

	if (keep_order && !has_delivered(from, set->tails[way], queue)) {
		if (gives_up(here, from, queue)) {
			here->counts.released++;
		} else {
			here->counts.held++;
			moves = false;
			to = from;
		}
	}
	if (to != KERNEL_PATH) {
		if (send(context, here, queue, to, &set->tails[way]) == XDP_REDIRECT) {
			set->words[way] = tag_of(hash, cpu_mask) | to;
			here->counts.steered++;
			here->counts.moves += moves;
			return XDP_REDIRECT;
		}
		reason = REASON_UNSENT;
	}
	forget(set, way);
	return pass(here, hash, queue, reason);
}

/* Why packets may not be sent to a CPU now; REASONS if they may. */
static __always_inline enum reason against(struct own *here, __u32 cpu, __u32 queue, bool stays)
{
	__u64 time = now();
	struct sent *row = look_at(here, cpu, queue, time);
	enum reason why = REASONS;

	if (!row)
		return REASON_UNSENT;
	if (without_lease(time) >= 0)
		why = REASON_LEASE;
	else if (!takes_rule(row, stays, time, room_of_queue, away_ticks))
		why = REASON_BUSY;
	row->open = why == REASONS ? time : 0;
	return why;
}

/* A packet of a flow that is to go elsewhere than the one before, or to a CPU that was not found
 * open in this tick, or is full: apart from what most packets take, so that this is short. */
static __noinline int turn(struct xdp_md *context, __u32 hash, __u32 queue, __u32 to,
			   enum reason reason)
{
	__u32 tag = tag_of(hash, cpu_mask), way;
	struct flow_set *set = flows_of(hash, queue);
	struct own *here = ours();
	enum reason why;
	bool stays;

	if (!set || !here)
		return XDP_PASS;
	way = find(set->words, tag, cpu_mask);
	stays = way < WAYS && set->words[way & (WAYS - 1)] == (tag | to);
	if (to != KERNEL_PATH) {
		why = against(here, to, queue, stays);
		if (why == REASONS && stays) {
			if (send(context, here, queue, to, &set->tails[way & (WAYS - 1)]) ==
			    XDP_REDIRECT) {
				here->counts.steered++;
				return XDP_REDIRECT;
			}
			why = REASON_UNSENT;
		}
		if (why != REASONS) {
			to = KERNEL_PATH;
			reason = why;
		}
	}
	if (way < WAYS)
		return leave_cpu(context, here, set, hash, queue, way & (WAYS - 1), to, reason);
	if (to == KERNEL_PATH)
		return pass(here, hash, queue, reason);
	return leave_kernel(context, here, set, hash, queue, to);
}

/* Whether a CPU was found open in this tick, and there is room for a packet of this queue. */
static __always_inline bool is_open(__u32 cpu, __u32 queue)
{
	__u32 at = queue * cpus + cpu;
	struct sent *row = bpf_map_lookup_elem(&sent, &at);

	return row && row->open == now() && waiting(row) < (__s32)room_of_queue;
}

SEC("xdp.frags")
int cachelane_steer(struct xdp_md *context)
{
	__u32 queue = context->rx_queue_index, hash, at, tag, to, way;
	struct record_set *recorded;
	struct own *here = ours();
	struct tuple tuple = {};
	struct flow_set *set;
	enum reason reason;

	if (!here)
		return XDP_PASS;
	reason = parse((void *)(long)context->data, (void *)(long)context->data_end, &tuple);
	if (reason != REASONS) {
		here->counts.kernel[reason & REASON_MASK]++;
		return XDP_PASS;
	}
	if (queue >= queues) {
		here->counts.kernel[REASON_QUEUE]++;
		return XDP_PASS;
	}
	hash = hash_of(&tuple);
	at = hash & set_mask;
	tag = tag_of(hash, cpu_mask);
	recorded = bpf_map_lookup_elem(&records, &at);
	set = flows_of(hash, queue);
	if (!recorded || !set)
		return XDP_PASS;
	/* Have both lines on their way: at which place a flow's word is cannot be predicted, so
	 * that without it the second would wait for the first. */
	asm volatile("" : : "r"(*(volatile __u32 *)set->words));
	to = wanted(recorded, hash, &reason);
	way = find(set->words, tag, cpu_mask);
	if (way == WAYS && to == KERNEL_PATH)
		return pass(here, hash, queue, reason);
	if (way == WAYS || to == KERNEL_PATH || set->words[way & (WAYS - 1)] != (tag | to) ||
	    !is_open(to, queue))
		return turn(context, hash, queue, to, reason);
	if (send(context, here, queue, to, &set->tails[way & (WAYS - 1)]) != XDP_REDIRECT)
		return turn(context, hash, queue, KERNEL_PATH, REASON_UNSENT);
	here->counts.steered++;
	return XDP_REDIRECT;
}

/* The process has looked after the host. */
SEC("syscall")
int cachelane_renew(struct ago *ago)
{
	__u32 zero = 0;
	struct settings *given = bpf_map_lookup_elem(&settings, &zero);

	if (given)
		*(volatile __u64 *)&given->renewed = now() - ago->ticks;
	return 0;
}

/* ---- for tests only: what the kernel runs for no test, on given input ---- */

struct tried_record {
	struct tuple tuple;
	__u32 cpu;
	__u32 reserved;
};

SEC("syscall")
int try_record(struct tried_record *tried)
{
	struct tuple tuple = tried->tuple;

	record(&tuple, tried->cpu);
	return 0;
}

SEC("xdp.frags")
int try_taken(struct xdp_md *context)
{
	return on_taken(context);
}

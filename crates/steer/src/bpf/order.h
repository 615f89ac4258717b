/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When a flow may go elsewhere than its last packet: once all of it is delivered where it went.
 *
 * At a CPU that is known by counts, of what was sent there and of what its thread has taken, and by
 * whether the thread sleeps. On the kernel path by the NAPI polls of the queue.
 */
#ifndef CACHELANE_STEER_ORDER_H
#define CACHELANE_STEER_ORDER_H

#include <stdbool.h>

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"
#include "rules.h"
#include "steer.h"

/* The loads before it come before the loads after it. An atomic that fetches orders what is around
 * it; x86 orders loads by itself, and there it would wait for all stores. */
#ifdef __TARGET_ARCH_x86
#define LOADS_IN_ORDER() asm volatile("" : : : "memory")
#else
#define LOADS_IN_ORDER()                                                                           \
	do {                                                                                       \
		__u64 nothing = 0;                                                                 \
		(void)__sync_fetch_and_add(&nothing, 0);                                           \
	} while (0)
#endif

/* linux/sched.h comes with too much. */
#define TASK_INTERRUPTIBLE 1
/* NAPI_STATE_IN_BUSY_POLL of linux/netdevice.h, whose enum has no name to find it by. */
#define NAPI_BUSY_POLL (1UL << 6)
/* A CPU's number and one, as part of a poll's. */
#define CPU_BITS 11
_Static_assert(CPUS_MAX < 1 << CPU_BITS, "a CPU has its bits");
/* Fields of the kernel's structs that are read. */
struct napi_struct {
	unsigned long state;
	int weight;
} __attribute__((preserve_access_index));
struct task_struct {
	unsigned int __state;
	char comm[16];
} __attribute__((preserve_access_index));

/* Whether a CPU's thread sleeps, which it does with nothing in hand. False if it is not known. */
static __always_inline bool sleeps(const struct target *target)
{
	const struct task_struct *thread = (const struct task_struct *)target->task;
	__u32 state = 0;

	bpf_core_read(&state, sizeof(state), &thread->__state);
	return state & TASK_INTERRUPTIBLE;
}

/* Whether a CPU is no target any more, and flows wait no longer for what they have there. */
static __always_inline bool is_left(const struct target *target)
{
	return !target->active && !target->task;
}

/* Whether everything that was sent to a CPU up to the packet `tail` of this queue is delivered, so
 * that none of it can be overtaken.
 *
 * Packets are counted as they are taken from the CPU's queue, before they are delivered. They are
 * once its thread sleeps, or has taken so many more. */
static __always_inline bool has_delivered(__u32 cpu, __u32 tail, __u32 queue)
{
	__u32 at = cpu * queues + queue, before;
	struct target *target = bpf_map_lookup_elem(&targets, &cpu);
	struct taken *there = bpf_map_lookup_elem(&taken, &at);

	if (!target || !there)
		return true;
	before = *(volatile __u32 *)&there->packets;
	if ((__s32)(before - tail) < 0)
		return false;
	/* Of a CPU that is no target any more what its thread still has is waited for, until the
	 * process says that this is gone. */
	if (is_left(target))
		return true;
	/* The count first: a thread seen asleep before it took the packets says nothing. */
	LOADS_IN_ORDER();
	return is_delivered(before, tail, sleeps(target), gro_outlasts_poll);
}

/* Ticks since the process should have renewed the lease at the latest; negative before that. */
static __always_inline __s64 without_lease(__u64 time)
{
	__u32 zero = 0;
	struct settings *given = bpf_map_lookup_elem(&settings, &zero);

	if (!lease_ticks || !given)
		return -1;
	return time - *(volatile __u64 *)&given->renewed - lease_ticks;
}

/* Looks at what a CPU has taken of this queue's packets. */
static __always_inline struct sent *look_at(struct own *here, __u32 cpu, __u32 queue, __u64 time)
{
	__u32 at = queue * cpus + cpu, counted = cpu * queues + queue, seen;
	__u32 of_all = queues > 1 ? cpus * queues + cpu : counted;
	struct target *target = bpf_map_lookup_elem(&targets, &cpu);
	struct taken *there = bpf_map_lookup_elem(&taken, &counted);
	struct taken *in_all = bpf_map_lookup_elem(&taken, &of_all);
	struct sent *row = bpf_map_lookup_elem(&sent, &at);
	bool asleep = false;

	if (!row || !target || !there || !in_all)
		return NULL;
	/* Only where it matters: another line of that CPU's. */
	if (time - row->moved >= stall_ticks)
		asleep = sleeps(target);
	seen = *(volatile __u32 *)&there->packets;
	here->counts.stalls += look_rule(row, seen, *(volatile __u32 *)&in_all->packets, asleep,
					 time, stall_ticks, away_ticks);
	return row;
}

/* The poll that this CPU is in: no other CPU's, and none that is remembered. Never 0. */
static __always_inline __u32 poll_of(const struct own *here)
{
	return here->poll.number << CPU_BITS | (bpf_get_smp_processor_id() + 1);
}

/* Where the bit of a flow is among those that may have a packet in GRO. */
#define PASSED_WORD(hash) ((hash) >> 28 & 3)
#define PASSED_BIT(hash)  (1ULL << ((hash) >> 22 & 63))

/* Whether the bits are of a poll that has left nothing in GRO. */
static __always_inline bool is_over(const struct passed *of_queue, __u32 poll)
{
	return of_queue->in != poll && of_queue->in == *(volatile __u32 *)&of_queue->done;
}

/* Whether a flow that takes the kernel path may leave it. Its packets may wait in GRO until the
 * NAPI poll is over, and what is sent to a CPU may start before that. */
static __always_inline bool may_leave(const struct own *here, __u32 hash, __u32 queue)
{
	struct passed *of_queue = bpf_map_lookup_elem(&passed, &queue);

	if (!of_queue)
		return false;
	return is_over(of_queue, poll_of(here)) ||
	       !(of_queue->bits[PASSED_WORD(hash)] & PASSED_BIT(hash));
}

/* Whether a poll has left packets in GRO: a busy poll, which is known by the NAPI's state or, at
 * its end, by a budget of its own, or one that has used its budget, where ticks are short. */
static __always_inline bool leaves_some(const struct napi_struct *napi, int work, int budget)
{
	return budget != BPF_CORE_READ(napi, weight) ||
	       BPF_CORE_READ(napi, state) & NAPI_BUSY_POLL || (work >= budget && gro_outlasts_poll);
}

#endif

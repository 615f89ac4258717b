/* SPDX-License-Identifier: GPL-2.0-only */
/* The tables' words and the two decisions, as functions of nothing but their arguments; model.rs
 * has them in Rust. */
#ifndef CACHELANE_STEER_RULES_H
#define CACHELANE_STEER_RULES_H

#include "steer.h"

/* A word is the hash's high bits and, in the low bits, a CPU: in a record that of the flow's
 * consumer, in a flow's state the one that its packets go to. 0 is none; the highest bit is set in
 * all others. */
#define WORD_USED 0x80000000

/* A word without the bits that are a CPU. */
static __always_inline __u32 tag_of(__u32 hash, __u32 cpu_mask)
{
	return (hash & ~cpu_mask) | WORD_USED;
}

/* Where in a set the word of this tag is; WAYS if nowhere. There is none behind an empty one. */
static __always_inline __u32 find(const __u32 *words, __u32 tag, __u32 cpu_mask)
{
#pragma unroll
	for (__u32 way = 0; way < WAYS; way++) {
		__u32 word = *(volatile __u32 *)&words[way];

		if ((word & ~cpu_mask) == tag)
			return way;
		if (!word)
			return WAYS;
	}
	return WAYS;
}

/* The first of a set's words that is 0; WAYS if there is none. */
static __always_inline __u32 find_empty(const __u32 *words)
{
#pragma unroll
	for (__u32 way = 0; way < WAYS; way++)
		if (!*(volatile __u32 *)&words[way])
			return way;
	return WAYS;
}

/* Who has to make room in a full set: whoever, but not always the same. */
static __always_inline __u32 victim(const __u32 *words, __u32 hash)
{
#pragma unroll
	for (__u32 way = 0; way < WAYS; way++)
		hash ^= *(volatile __u32 *)&words[way];
	/* Fibonacci hashing to three bits. */
	return hash * 0x9e3779b9 >> 29;
}
_Static_assert(WAYS == 8, "three bits are the way");

enum record_action {
	RECORD_RIGHT,	  /* it says this CPU */
	RECORD_SAME_LANE, /* it says another CPU of the lane: left alone */
	RECORD_WRITE,	  /* it says a CPU of another lane, or one that is gone */
};

/* What becomes of a flow's record of CPU `recorded` when its consumer runs on `cpu`; `there` is the
 * target `recorded`, NULL if there is no such CPU. */
static __always_inline enum record_action record_rule(__u32 recorded, __u32 cpu,
						      const struct target *here,
						      const struct target *there, bool llc_affinity)
{
	if (recorded == cpu)
		return RECORD_RIGHT;
	if (llc_affinity && there && there->active && here->lane == there->lane)
		return RECORD_SAME_LANE;
	return RECORD_WRITE;
}

/* Packets that a CPU had not taken at the last look. */
static __always_inline __s32 waiting(const struct sent *row)
{
	return row->packets - row->seen;
}

/* What a queue learns of a CPU that has taken `taken` of its packets and `worked` of all queues',
 * `now`; `sleeps`: its thread, so that it has nothing that it could take. True if it is seen to
 * stall, and was not before.
 *
 * Counts that do not fit are mended: of packets that never came to a CPU, and of those that came to
 * it uncounted. */
static __always_inline bool look_rule(struct sent *row, __u32 taken, __u32 worked, bool sleeps,
				      __u64 now, __u32 stall_ticks, __u32 away_ticks)
{
	bool moves = taken != row->seen || worked != row->worked, begins = false;

	row->seen = taken;
	row->worked = worked;
	if (waiting(row) <= 0 || (!moves && sleeps && now - row->moved >= stall_ticks)) {
		row->packets = taken;
		moves = true;
	}
	if (moves) {
		row->moved = now;
	} else if (now - row->moved >= stall_ticks) {
		begins = !row->stalled || now - row->stalled >= away_ticks;
		row->stalled = now;
	}
	return begins;
}

/* Whether packets may be sent to a CPU after such a look. Flows that are not there yet leave half
 * of the room to those that are, so that they do not go to and fro. */
static __always_inline bool takes_rule(const struct sent *row, bool stays, __u64 now, __u32 room,
				       __u32 away_ticks)
{
	if (row->stalled && now - row->stalled < away_ticks)
		return false;
	return waiting(row) < (__s32)(stays ? room : (room + 1) / 2);
}

/* Whether flows wait no longer for what they have at a CPU: it has taken nothing for too long. What
 * it has no room for would be lost, which is worse than overtaking: then the time of a stall is
 * too long. */
static __always_inline bool is_given_up(const struct sent *row, __u64 now, __u32 room,
					__u32 stall_ticks, __u32 patience_ticks)
{
	return now - row->moved >= (waiting(row) < (__s32)room ? patience_ticks : stall_ticks);
}

/* Packets after which those before have left a cpumap's thread: it takes 8 at a time, runs the
 * program on them first, and flushes what GRO holds every 64 packets (CPUMAP_BATCH and
 * NAPI_POLL_WEIGHT in kernel/bpf/cpumap.c). But with ticks of a millisecond or less that flush
 * leaves what came in this tick (cpu_map_gro_flush): however many have come, only a thread that
 * sleeps has delivered then. */
#define DELIVERED_AFTER 72

/* Whether all packets up to `tail` have been delivered on a CPU that has taken `taken` of them;
 * `sleeps`: its thread sleeps, which it does with nothing in hand; `short_ticks`: of a millisecond
 * or less. */
static __always_inline bool is_delivered(__u32 taken, __u32 tail, bool sleeps, bool short_ticks)
{
	__s32 since = taken - tail;

	return since >= 0 && (sleeps || (since >= DELIVERED_AFTER && !short_ticks));
}

#endif

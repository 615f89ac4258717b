/* SPDX-License-Identifier: GPL-2.0-only */
/* What is fixed when the programs are loaded, and their maps. */
#ifndef CACHELANE_STEER_MAPS_H
#define CACHELANE_STEER_MAPS_H

#include <cachelane/maps.h>

#include "steer.h"

/* One less than the number of sets of records, a power of two. */
const volatile __u32 set_mask;
/* One less than a power of two that is at least the number of CPUs: the bits of a record that are
 * its CPU. */
const volatile __u32 cpu_mask;
/* CPUs that there can be: a row of `sent` and `taken`. */
const volatile __u32 cpus;
/* Queues of the device. With more than one, packets carry their queue's number to the CPU. */
const volatile __u32 queues;
/* Not 0: a NAPI poll that used its budget leaves packets in GRO, and so does a cpumap's thread that
 * has more to do (HZ is 1000 or more). */
const volatile __u32 gro_outlasts_poll;
/* 0: a flow moves at once. There for a test to see packets overtake each other. */
const volatile __u32 keep_order = 1;

/* Packets of a queue that wait for a CPU at most: its part of the room that the CPU's queue has. */
const volatile __u32 room_of_queue;
/* Ticks after which a CPU that takes nothing is no target: 8 ms. */
const volatile __u32 stall_ticks;
/* Ticks for which it is none then: a second. */
const volatile __u32 away_ticks;
/* Ticks after which flows wait no longer for what they have at a CPU that is none: 60 ms. */
const volatile __u32 patience_ticks;
/* Ticks after which nothing is steered any more if the process does not renew that; 0: never. */
const volatile __u32 lease_ticks;
/* Not 0: a test says what time it is. */
const volatile __u32 tried_time;

/* Whose numbers the process has as well. */
const volatile struct {
	enum fixed fixed;
	enum reason reason;
} shared;

volatile __u64 time_to_try;

/* For the verifier: at least REASONS - 1, and below the room in struct counts. */
#define REASON_MASK 15

ALIGNED_ARRAY(records, SET_AT_LOAD, struct record_set);
/* By queue and set. */
ALIGNED_ARRAY(flows, SET_AT_LOAD, struct flow_set);
/* By queue and CPU. */
ALIGNED_ARRAY(sent, SET_AT_LOAD, struct sent);
/* By CPU and queue; with several queues, after these by CPU, of all queues. */
ALIGNED_ARRAY(taken, SET_AT_LOAD, struct taken);
/* By queue. */
ALIGNED_ARRAY(passed, SET_AT_LOAD, struct passed);
ARRAY(targets, CPUS_MAX, struct target);
MAP(entries, CPUMAP, SET_AT_LOAD, struct bpf_cpumap_val, 0);
ARRAY(settings, 1, struct settings);
PER_CPU_ARRAY(own, 1, struct own);

/* In ticks. */
static __always_inline __u64 now(void)
{
	return tried_time ? time_to_try : bpf_jiffies64();
}

static __always_inline struct own *ours(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&own, &zero);
}

#endif

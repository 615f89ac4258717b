/* SPDX-License-Identifier: GPL-2.0-only */
/* The record side: where local sockets receive and send. */
#ifndef CACHELANE_STEER_RECORD_H
#define CACHELANE_STEER_RECORD_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"
#include "maps.h"
#include "rules.h"
#include "socket.h"

/* Writes the record of a flow whose consumer runs on `cpu`, if it has to be written. */
static __always_inline void record(const struct tuple *tuple, __u32 cpu)
{
	__u32 hash = hash_of(tuple), at = hash & set_mask, tag = tag_of(hash, cpu_mask), zero = 0;
	struct record_set *set = bpf_map_lookup_elem(&records, &at);
	struct target *here = bpf_map_lookup_elem(&targets, &cpu);
	struct settings *given = bpf_map_lookup_elem(&settings, &zero);
	struct own *ours_here = ours();
	struct counts *counted;
	__u32 way, recorded;

	if (!set || !here || !given || !ours_here)
		return;
	counted = &ours_here->counts;
	counted->receives++;
	way = find(set->words, tag, cpu_mask);
	if (way < WAYS) {
		recorded = *(volatile __u32 *)&set->words[way] & cpu_mask;
		switch (record_rule(recorded, cpu, here, bpf_map_lookup_elem(&targets, &recorded),
				    given->llc_affinity)) {
		case RECORD_RIGHT:
			counted->unchanged++;
			return;
		case RECORD_SAME_LANE:
			counted->same_lane++;
			return;
		case RECORD_WRITE:
			break;
		}
	} else {
		counted->collisions += set->words[0] != 0;
		way = find_empty(set->words);
		if (way == WAYS) {
			way = victim(set->words, hash);
			counted->evicted++;
		}
	}
	counted->written++;
	*(volatile __u32 *)&set->words[way & (WAYS - 1)] = tag | cpu;
}

static __always_inline int on_socket(struct bpf_raw_tracepoint_args *context)
{
	struct tuple tuple = {};

	if (counts_for(context) && tuple_of_socket((struct sock *)context->args[0], &tuple))
		record(&tuple, bpf_get_smp_processor_id());
	return 0;
}

SEC("raw_tp/sock_recv_length")
int cachelane_recv(struct bpf_raw_tracepoint_args *context)
{
	return on_socket(context);
}

SEC("raw_tp/sock_send_length")
int cachelane_send(struct bpf_raw_tracepoint_args *context)
{
	return on_socket(context);
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How the kernel is kept from forgetting stations whose frames it does not see.
 *
 * A frame of such a station is copied now and then: the copy is put before the port again, to the
 * address for LLDP, which the bridge learns from and forwards nowhere, and with a length of 0
 * instead of a protocol, so that it ends at the first look of LLC, without being counted as
 * dropped. The frame itself goes where all of its flow goes, and nothing overtakes it.
 */
#ifndef CACHELANE_BRIDGE_COPIES_H
#define CACHELANE_BRIDGE_COPIES_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "table.h"
#include "vlans.h"

/* Where copies go: the nearest bridge, for LLDP. */
#define COPY_TARGET                                                                                \
	{                                                                                          \
		0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e                                                 \
	}
/* What a tcx program returns to let the next one look; linux/bpf.h has it from 6.6 on. */
#define NEXT -1

/* The way of a frame that is sent on. */
struct way {
	const struct port *to;
	int straight; /* into the peer's namespace */
	struct retag retag;
	struct stamp *stale; /* the source's stamp, if a copy is due */
	__u32 now;
	int urgent; /* without a copy this frame has to take the kernel path */
};

/* Whether this CPU may make a copy that could wait. */
static __always_inline int may_copy(const struct settings *set, struct counts *count, __u32 now)
{
	if (count->jiffy != now) {
		count->jiffy = now;
		count->in_jiffy = 0;
	}
	return count->in_jiffy++ < set->copies;
}

/* Stamps the station, at most once a jiffy, and sees whether the kernel has to be shown that it is
 * there. Returns whether this frame has to show it; or has `way` say that a copy is due. */
static __always_inline int stamp_source(struct station station, const struct port *in,
					const struct settings *set, struct counts *count,
					struct way *way)
{
	__u32 slot = station.place >> STATION_SLOT_SHIFT;
	__u32 now = bpf_jiffies64(), age;
	struct stamp *stamp;

	if (set->shared)
		stamp = bpf_map_lookup_elem(&shared_stamps, &slot);
	else
		stamp = bpf_map_lookup_elem(&stamps, &slot);
	if (!stamp)
		return 1;
	if (stamp->seen != now)
		stamp->seen = now;
	age = now - stamp->refreshed;
	if (station.place & STATION_AGELESS || !(in->flags & PORT_REFRESH))
		return 0;
	/* A bridge that forgets at once learns nothing from a copy either. */
	if (in->flags & PORT_COPY && set->refresh_every) {
		way->urgent = age >= set->refresh_every;
		if (way->urgent || (age >= set->copy_every && may_copy(set, count, now)))
			way->stale = stamp;
		way->now = now;
		return 0;
	}
	if (age < set->refresh_every)
		return 0;
	stamp->refreshed = now;
	return 1;
}

/* Puts a copy of the frame before its port again that the bridge learns from and nobody gets.
 * Returns whether there is one; less than 0 if the frame is spoilt, for want of memory. */
static __always_inline int send_copy(struct __sk_buff *skb)
{
	struct ethhdr header, copied = {.h_dest = COPY_TARGET};
	__u32 mark = skb->mark;
	int failed;

	if (bpf_skb_load_bytes(skb, 0, &header, sizeof(header)))
		return 0;
	__builtin_memcpy(copied.h_source, header.h_source, ETH_ALEN);
	/* By helper: a program that writes packets by itself has each packet made writable first.
	 */
	if (bpf_skb_store_bytes(skb, 0, &copied, sizeof(copied), 0))
		return 0;
	skb->mark = copy_mark;
	failed = bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = mark;
	if (bpf_skb_store_bytes(skb, 0, &header, sizeof(header), 0))
		return -1;
	return !failed;
}

/* Whether this is a copy that comes back. */
static __always_inline int is_copy(const struct __sk_buff *skb)
{
	const struct ethhdr copied = {.h_dest = COPY_TARGET};
	const struct ethhdr *eth = (void *)(long)skb->data;

	return skb->mark == copy_mark && (void *)(eth + 1) <= (void *)(long)skb->data_end &&
	       number_of(eth->h_dest) == number_of(copied.h_dest) && !eth->h_proto;
}

/* What to do with a copy: the bridge learns from it, unless its station has shown up on another
 * port since it was made. Then the bridge knows better, or will in a moment. */
static __always_inline int take_copy(struct __sk_buff *skb, const struct settings *set)
{
	const struct ethhdr *eth = (void *)(long)skb->data;
	const struct station *known;
	const struct port *in;
	struct inside frame = {};
	struct station source;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	/* Its VLAN is that of the frame, whose tag it has. */
	if (look_inside(skb, eth->h_proto, set->vlan_protocol, &frame) != FORWARD)
		return TC_ACT_SHOT;
	known = find_station(key_of(eth->h_source, frame.vlan));
	if (!known)
		return TC_ACT_SHOT;
	source = read_station(known);
	in = port_of(source);
	if (source.unsettled || !in || in->index != skb->ifindex)
		return TC_ACT_SHOT;
	/* The bridge has begun to forward what goes there, or somebody to watch. */
	if (!(in->flags & PORT_COPY))
		return TC_ACT_SHOT;
	skb->mark = 0;
	return NEXT;
}

#endif

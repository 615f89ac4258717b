/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which VLAN the bridge counts a frame to, and what becomes of its tag.
 *
 * A tag that stands in front of a frame is in the packet's own fields by the time that a tcx
 * program runs (`vlan_present`), whether the card or the stack has put it there. A bridge goes by
 * tags of one protocol. A frame without one of these, or with one that names VLAN 0, is in the
 * VLAN of its port (the PVID). A tag of the other protocol becomes a part of the frame.
 */
#ifndef CACHELANE_BRIDGE_VLANS_H
#define CACHELANE_BRIDGE_VLANS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"

#define VLAN_BITS 0xfff

/* How the bridge sees a frame within. */
struct inside {
	__u16 vlan; /* 0: the bridge looks at no VLANs */
	__u16 tci;  /* what its tag says, or would say */
	int tagged; /* it came with such a tag */
	int zero;   /* which names VLAN 0 */
	int nested; /* there is another tag as well, which is a part of the frame */
};

static __always_inline int is_tag(__u16 ethertype)
{
	return ethertype == bpf_htons(ETH_P_8021Q) || ethertype == bpf_htons(ETH_P_8021AD);
}

/* Finds the VLAN of a port's frames without a tag. */
static __always_inline const struct inlet *inlet_of(__u32 index)
{
	__u32 home = index % INLET_BUCKETS;
	const struct inlet_bucket *bucket = bpf_map_lookup_elem(&inlets, &home);

	if (!bucket)
		return NULL;
#pragma unroll
	for (int i = 0; i < INLETS_IN_BUCKET; i++) {
		if (bucket->inlets[i].index == index)
			return &bucket->inlets[i];
	}
	return NULL;
}

/* Sees how the bridge takes a frame. FORWARD: it is in a VLAN, or the bridge looks at none; else
 * why that cannot be said. */
static __always_inline enum reason look_inside(const struct __sk_buff *skb, __u16 ethertype,
					       __u16 protocol, struct inside *frame)
{
	const struct inlet *inlet;

	if (!protocol)
		return FORWARD;
	/* Nothing leaves a tag there; a program before ours might. */
	if (!skb->vlan_present && is_tag(ethertype))
		return REASON_VLAN;
	frame->tagged = skb->vlan_present && skb->vlan_proto == protocol;
	frame->nested = is_tag(ethertype) || (skb->vlan_present && !frame->tagged);
	if (frame->tagged)
		frame->tci = skb->vlan_tci;
	frame->vlan = frame->tci & VLAN_BITS;
	if (frame->vlan)
		return FORWARD;
	frame->zero = frame->tagged;
	inlet = inlet_of(skb->ifindex);
	if (!inlet)
		return REASON_PORT_IN;
	frame->vlan = inlet->pvid & VLAN_BITS;
	frame->tci |= frame->vlan;
	return frame->vlan ? FORWARD : REASON_NOT_MEMBER;
}

/* The VLANs around this one of the port in a slot. */
static __always_inline const struct vlan_set *vlans_of(__u32 slot, __u16 vlan)
{
	const struct vlans *of = bpf_map_lookup_elem(&vlans, &slot);

	return of ? &of->sets[vlan / 64 % VLAN_SETS] : NULL;
}

static __always_inline int has(__u64 set, __u16 vlan)
{
	return set >> vlan % 64 & 1;
}

/* What is done to a frame's tag as it leaves. */
struct retag {
	int pop;
	int push;
	__u16 protocol;
	__u16 tci;
};

/* Sees whether a frame may cross from one port to another, and what becomes of its tag. */
static __always_inline enum reason cross(const struct inside *frame, __u32 from, __u32 to,
					 struct retag *retag)
{
	const struct vlan_set *in = vlans_of(from, frame->vlan);
	const struct vlan_set *out = vlans_of(to, frame->vlan);

	if (!in || !out || !has(in->forwarding, frame->vlan) || !has(out->forwarding, frame->vlan))
		return REASON_NOT_MEMBER;
	if (has(out->untagged, frame->vlan)) {
		retag->pop = frame->tagged;
		return FORWARD;
	}
	/* A tag that stays as it was stays where it is. */
	retag->pop = frame->zero;
	retag->push = frame->zero || !frame->tagged;
	retag->tci = frame->tci;
	return FORWARD;
}

/* Does it; 0 if that has worked. Where there is no memory, the bridge would drop the frame too. */
static __always_inline long change_tag(struct __sk_buff *skb, const struct retag *retag)
{
	long failed = retag->pop ? bpf_skb_vlan_pop(skb) : 0;

	if (!failed && retag->push)
		failed = bpf_skb_vlan_push(skb, retag->protocol, retag->tci);
	return failed;
}

#endif

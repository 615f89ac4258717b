/* SPDX-License-Identifier: GPL-2.0-only */
/* The flow of a packet. */
#ifndef CACHELANE_STEER_PACKET_H
#define CACHELANE_STEER_PACKET_H

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"

/* linux/ip.h has it not: more fragments, or not the first. */
#define IP_MORE_OR_OFFSET 0x3fff
/* The VLAN tags that are looked through. */
#define VLAN_TAGS 2

struct vlan_tag {
	__be16 tag;
	__be16 type;
};

/* Reads the flow of a packet; REASONS if it has one, else why not. */
static __always_inline enum reason parse(const void *at, const void *end, struct tuple *tuple)
{
	const struct ethhdr *ethernet = at;
	__u16 type;

	at = ethernet + 1;
	if (at > end)
		return REASON_SHORT;
	type = ethernet->h_proto;
#pragma unroll
	for (int tags = 0; tags < VLAN_TAGS; tags++) {
		const struct vlan_tag *tag = at;

		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		at = tag + 1;
		if (at > end)
			return REASON_SHORT;
		type = tag->type;
	}
	if (type == bpf_htons(ETH_P_IP)) {
		const struct iphdr *ip = at;

		if ((const void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
			return REASON_SHORT;
		if (ip->frag_off & bpf_htons(IP_MORE_OR_OFFSET))
			return REASON_FRAGMENT;
		tuple->protocol = ip->protocol;
		__builtin_memcpy(&tuple->addresses[0], &ip->saddr, 8);
		at += ip->ihl * 4;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		const struct ipv6hdr *ip = at;

		at = ip + 1;
		if (at > end || ip->version != 6)
			return REASON_SHORT;
		if (ip->nexthdr == IPPROTO_FRAGMENT)
			return REASON_FRAGMENT;
		tuple->protocol = ip->nexthdr;
		tuple->ipv6 = 1;
		__builtin_memcpy(&tuple->addresses[0], &ip->saddr, 32);
	} else {
		return REASON_OTHER;
	}
	if (tuple->protocol != IPPROTO_TCP && tuple->protocol != IPPROTO_UDP)
		return REASON_PROTOCOL;
	if (at + 4 > end)
		return REASON_SHORT;
	__builtin_memcpy(&tuple->source, at, 4);
	return REASONS;
}

#endif

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The packet path: a tcx ingress program on every port of a bridge. It sends a frame on only
 * where the bridge would do exactly that, and leaves every other frame to the bridge.
 *
 * What it reads is written by the process, which follows the bridge by netlink. The lines that it
 * writes belong to the CPU that it runs on: its counts and, with the split table, its stamps.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "copies.h"
#include "rules.h"
#include "table.h"

char LICENSE[] SEC("license") = "GPL";

/* linux/if_ether.h has them only where it is recent. */
#define ETHERTYPE_CFM 0x8902
#define ETHERTYPE_MRP 0x88e3
/* An Ethernet header and that of a PPPoE session: shorter frames br_netfilter drops, whatever it
 * claims. */
#define PPPOE_LEN (ETH_HLEN + 8)

/* Whether a frame may be neighbour discovery. */
static __always_inline int may_be_nd(const struct ethhdr *eth, const void *end)
{
	const struct ipv6hdr *ip = (void *)(eth + 1);

	return (void *)(ip + 1) > end || ip->nexthdr == IPPROTO_ICMPV6;
}

/* Whether the kernel has to see this frame's protocol, whatever its addresses. */
static __always_inline int is_kernels(const struct __sk_buff *skb, const struct ethhdr *eth,
				      __u32 kernel_ethertypes, int nested)
{
	const void *end = (void *)(long)skb->data_end;

	/* What is behind another tag is not looked for. */
	if (nested && kernel_ethertypes)
		return 1;
	switch (eth->h_proto) {
	case bpf_htons(ETH_P_IP):
		return kernel_ethertypes & KERNEL_IPV4;
	case bpf_htons(ETH_P_IPV6):
		return kernel_ethertypes & KERNEL_IPV6 ||
		       (kernel_ethertypes & KERNEL_ND && may_be_nd(eth, end));
	case bpf_htons(ETH_P_ARP):
	case bpf_htons(ETH_P_RARP):
		return kernel_ethertypes & KERNEL_ARP;
	case bpf_htons(ETH_P_PPP_SES):
		return kernel_ethertypes & KERNEL_PPPOE || skb->len < PPPOE_LEN;
	case bpf_htons(ETHERTYPE_CFM):
	case bpf_htons(ETHERTYPE_MRP):
		return 1;
	default:
		return 0;
	}
}

/* What stands against forwarding between two ports; FORWARD if nothing does. */
static __always_inline enum reason refusal(const struct port *in, const struct port *out,
					   const struct __sk_buff *skb)
{
	if (!(in->flags & PORT_IN))
		return REASON_PORT_IN;
	if (!(out->flags & PORT_OUT))
		return REASON_PORT_OUT;
	if (in->flags & out->flags & PORT_ISOLATED)
		return REASON_ISOLATED;
	if (skb->len > out->max_len && !skb->gso_size)
		return REASON_TOO_LONG;
	return FORWARD;
}

/* Whether a port's driver takes the packet in one piece. The port's queue would ask; it also asks
 * for what nobody has looked at yet, as a virtual machine may send it: it has no count of segments.
 */
static __always_inline int is_whole(const struct port *out, const struct __sk_buff *skb)
{
	__u32 size = out->gso_ipv4_max_size;

	if (!skb->gso_size)
		return 1;
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		size = out->gso_max_size;
	return skb->len < size && skb->gso_segs && skb->gso_segs <= out->gso_max_segs;
}

/* Sees whether a frame may go from one port to another within its VLAN. */
static __always_inline enum reason leave_vlan(struct __sk_buff *skb, const struct inside *frame,
					      struct station source, struct station target,
					      struct way *way)
{
	__u32 from = source.place & STATION_PORT_MASK, to = target.place & STATION_PORT_MASK;

	if (skb->vlan_present && is_for_vlan_device(skb))
		return REASON_VLAN;
	/* No driver takes a GSO packet with two tags as it is; and others want to be told where the
	 * header of IP begins, of which only a veth's other end thinks nothing. */
	if (frame->nested && (skb->gso_size || !way->straight))
		return REASON_VLAN;
	return cross(frame, from, to, &way->retag);
}

/* Finds the way for a frame, or a reason to leave it to the kernel; FORWARD if there is none. */
static __always_inline enum reason route(struct __sk_buff *skb, const struct settings *set,
					 struct counts *count, struct way *way)
{
	const struct ethhdr *eth = (void *)(long)skb->data;
	struct station *known, *other, source = {}, target;
	const struct port *in = NULL, *out;
	struct inside frame = {};
	enum reason reason;
	__u64 source_key;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return REASON_SHORT;
	/* The bridge drops what comes from nobody or from a group, be it in its table. */
	if (!number_of(eth->h_source) || eth->h_source[0] & 1)
		return REASON_UNKNOWN_SRC;
	reason = look_inside(skb, eth->h_proto, set->vlan_protocol, &frame);
	if (reason != FORWARD)
		return reason;
	source_key = key_of(eth->h_source, frame.vlan);
	/* Before anything else that leaves the frame to the kernel: it learns from every frame, and
	 * from then on the table here is wrong about the station. */
	known = find_station(source_key);
	if (known) {
		source = read_station(known);
		in = port_of(source);
	}
	if (known && in && in->index != skb->ifindex) {
		report_move(known, source_key);
		return REASON_MOVED;
	}
	if (!set->active)
		return REASON_OFF;
	if (bpf_jiffies64() >= lease_until)
		return REASON_LEASE;
	/* Where the bridge looks at no tags. */
	if (!frame.vlan && (skb->vlan_present || is_tag(eth->h_proto)))
		return REASON_VLAN;
	if (eth->h_dest[0] & 1)
		return REASON_GROUP;
	if (skb->pkt_type == PACKET_LOOPBACK ||
	    is_kernels(skb, eth, set->kernel_ethertypes, frame.nested))
		return REASON_PROTOCOL;

	if (!known || !in)
		return REASON_UNKNOWN_SRC;
	other = find_station(key_of(eth->h_dest, frame.vlan));
	if (!other)
		return REASON_UNKNOWN_DST;
	target = read_station(other);
	out = port_of(target);
	if (!out)
		return REASON_UNKNOWN_DST;
	if (source.unsettled || target.unsettled)
		return REASON_UNSETTLED;
	if (in == out)
		return REASON_SAME_PORT;
	reason = refusal(in, out, skb);
	if (reason != FORWARD)
		return reason;
	way->straight = out->flags & PORT_STRAIGHT && out->peer_key == number_of(eth->h_dest) &&
			is_whole(out, skb);
	reason = frame.vlan ? leave_vlan(skb, &frame, source, target, way) : FORWARD;
	if (reason != FORWARD)
		return reason;
	if (is_ruled(skb, out, eth->h_proto))
		return REASON_RULES;
	if (stamp_source(source, in, set, count, way))
		return REASON_REFRESH;
	way->retag.protocol = set->vlan_protocol;
	way->to = out;
	return FORWARD;
}

static __always_inline void count_arrival(const struct __sk_buff *skb)
{
	__u32 index = skb->ifindex;
	__u64 *count = bpf_map_lookup_elem(&arrivals, &index);

	if (count)
		++*count;
}

SEC("tcx/ingress")
int cachelane_br(struct __sk_buff *skb)
{
	const struct settings *set;
	struct counts *count;
	struct way way = {};
	enum reason reason;
	__u32 zero = 0;
	int copied;

	set = bpf_map_lookup_elem(&settings, &zero);
	count = bpf_map_lookup_elem(&counts, &zero);
	if (!set || !count)
		return NEXT;
	if (is_copy(skb))
		return take_copy(skb, set);
	if (set->arrivals)
		count_arrival(skb);
	reason = route(skb, set, count, &way);
	if (way.stale) {
		copied = send_copy(skb);
		if (copied < 0)
			return TC_ACT_SHOT;
		if (copied || way.urgent)
			way.stale->refreshed = way.now;
		if (!copied && way.urgent)
			reason = REASON_REFRESH;
		count->copies += copied;
	}
	if (reason != FORWARD) {
		count->kernel[reason]++;
		return NEXT;
	}
	if (!way.to)
		return NEXT;
	count->bytes += skb->len;
	if (change_tag(skb, &way.retag))
		return TC_ACT_SHOT;
	if (!way.straight) {
		count->redirected++;
		return bpf_redirect(way.to->index, 0);
	}
	count->straight++;
	/* As a veth pair does with what crosses into another namespace. */
	skb->mark = 0;
	skb->priority = 0;
	/* It is for the peer's own address. Kernels before 6.12 or so keep what it was here. */
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(way.to->index, 0);
}

/* Run by the process, for whom nothing but BPF could write the table a word at a time. */
SEC("syscall")
int edit(struct request *request)
{
	struct station *station;
	__u32 unsettled = request->station.unsettled;

	if (request->edit == EDIT_REMOVE)
		return remove_key(request->key);
	station = find_station(request->key);
	if (request->edit == EDIT_WRITE) {
		if (!station)
			return write_new(request->key, request->station);
		write_station(station, request->station);
		return 1;
	}
	if (!station)
		return 0;
	if (request->edit == EDIT_READ) {
		request->station = read_station(station);
		return 1;
	}
	return __sync_val_compare_and_swap(&station->unsettled, unsettled, 0) == unsettled;
}

/* Run by the process: as it begins to look at the host, and when it has acted on what it saw. The
 * time comes from here alone, so that no stop between the two can lengthen the lease. */
SEC("syscall")
int renew(struct renewal *renewal)
{
	if (renewal->length)
		lease_until = renewal->from + renewal->length;
	else
		renewal->from = bpf_jiffies64();
	return 0;
}

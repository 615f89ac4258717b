/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An XDP program that sends chosen packets to the AF_XDP socket of the queue that they came in on,
 * and leaves all others to the kernel. What is chosen is fixed at load.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "xsk.h"

char LICENSE[] SEC("license") = "GPL";

#define IP_MORE_OR_OFFSET 0x3fff /* not the reserved bit and "don't fragment" */
#define VLAN_ID		  0x0fff /* not the priority */
#define MOST_TAGS	  2

/* A packet is chosen if it is in one of the VLANs and any of the others chooses it. */
const volatile __u8 by_vlan;
const volatile __u8 untagged; /* by VLAN: also packets without tag */
const volatile __u8 by_ethertype;
const volatile __u8 by_protocol;
const volatile __u8 by_udp_port;
const volatile __u8 by_tcp_port;

/* Sets, a bit for each number: number / 64, number % 64. */
const volatile __u64 vlans[64];
const volatile __u64 ethertypes[1024];
const volatile __u64 protocols[4];
const volatile __u64 udp_ports[1024];
const volatile __u64 tcp_ports[1024];

const volatile __u64 lease_ns; /* a socket not looked at for so long gets no packets */
const volatile __u64 seal;     /* of stamps; 0: packets get none */

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1); /* set at load: the device's queues */
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* When the queue's socket was last looked at: nanoseconds of CLOCK_MONOTONIC_COARSE. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); /* set at load, as that of `sockets` */
	__type(key, __u32);
	__type(value, __u64);
} looks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* A filter expression has a program of its own, which hands packets on: first what gets those that
 * match, second what gets all others. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} answers SEC(".maps");

enum choice { CHOSEN, NOT_CHOSEN, MALFORMED, FRAGMENT };

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

struct vlan_tag {
	__be16 control;
	__be16 type; /* of what is behind it */
};

static __always_inline int is_in(const volatile __u64 *set, __u16 number)
{
	return set[number / 64] >> number % 64 & 1;
}

static __always_inline enum choice choose_udp(const struct udphdr *udp, const void *end)
{
	if ((const void *)(udp + 1) > end || bpf_ntohs(udp->len) < sizeof(*udp))
		return MALFORMED;
	return is_in(udp_ports, bpf_ntohs(udp->dest)) ? CHOSEN : NOT_CHOSEN;
}

static __always_inline enum choice choose_tcp(const struct tcphdr *tcp, const void *end)
{
	if ((const void *)(tcp + 1) > end || tcp->doff < 5)
		return MALFORMED;
	return is_in(tcp_ports, bpf_ntohs(tcp->dest)) ? CHOSEN : NOT_CHOSEN;
}

static __always_inline enum choice choose_port(__u8 protocol, const void *header, const void *end)
{
	return protocol == IPPROTO_UDP ? choose_udp(header, end) : choose_tcp(header, end);
}

static __always_inline int has_wanted_ports(__u8 protocol)
{
	return (by_udp_port && protocol == IPPROTO_UDP) || (by_tcp_port && protocol == IPPROTO_TCP);
}

static __always_inline enum choice choose_ipv4(const struct iphdr *ip, const void *end)
{
	if ((const void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return MALFORMED;
	if (by_protocol && is_in(protocols, ip->protocol))
		return CHOSEN;
	if (!has_wanted_ports(ip->protocol))
		return NOT_CHOSEN;
	if (ip->frag_off & bpf_htons(IP_MORE_OR_OFFSET))
		return FRAGMENT;
	return choose_port(ip->protocol, (const void *)ip + ip->ihl * 4, end);
}

static __always_inline enum choice choose_ipv6(const struct ipv6hdr *ip, const void *end)
{
	const struct fragment_header *fragment = (const void *)(ip + 1);

	if ((const void *)fragment > end || ip->version != 6)
		return MALFORMED;
	if (by_protocol && is_in(protocols, ip->nexthdr))
		return CHOSEN;
	if (has_wanted_ports(ip->nexthdr))
		return choose_port(ip->nexthdr, fragment, end);
	if (!(by_udp_port || by_tcp_port) || ip->nexthdr != IPPROTO_FRAGMENT)
		return NOT_CHOSEN;
	if ((const void *)(fragment + 1) > end)
		return MALFORMED;
	return has_wanted_ports(fragment->next) ? FRAGMENT : NOT_CHOSEN;
}

static __always_inline enum choice choose_type(__be16 type, const void *payload, const void *end)
{
	if (by_ethertype && is_in(ethertypes, bpf_ntohs(type)))
		return CHOSEN;
	if (!by_protocol && !by_udp_port && !by_tcp_port)
		return NOT_CHOSEN;
	if (type == bpf_htons(ETH_P_IP))
		return choose_ipv4(payload, end);
	if (type == bpf_htons(ETH_P_IPV6))
		return choose_ipv6(payload, end);
	return NOT_CHOSEN;
}

static __always_inline int is_tag(__be16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
}

/* By the outermost tag. */
static __always_inline enum choice choose_vlan(__be16 type, const struct vlan_tag *tag,
					       const void *end)
{
	if (!is_tag(type))
		return untagged ? CHOSEN : NOT_CHOSEN;
	if ((const void *)(tag + 1) > end)
		return MALFORMED;
	return is_in(vlans, bpf_ntohs(tag->control) & VLAN_ID) ? CHOSEN : NOT_CHOSEN;
}

/* Whether a packet goes to a socket. Depends on nothing but its bytes and the settings. */
static __always_inline enum choice choose(const void *packet, const void *end)
{
	const struct ethhdr *ethernet = packet;
	const struct vlan_tag *tag = (const void *)(ethernet + 1);
	int by_others = by_ethertype || by_protocol || by_udp_port || by_tcp_port;

	if (!by_vlan && !by_others)
		return CHOSEN;
	if ((const void *)tag > end)
		return MALFORMED;
	__be16 type = ethernet->h_proto;
	if (by_vlan) {
		enum choice choice = choose_vlan(type, tag, end);
		if (choice != CHOSEN || !by_others)
			return choice;
	}
	for (int tags = 0; tags < MOST_TAGS && is_tag(type); tags++, tag++) {
		if (by_ethertype && is_in(ethertypes, bpf_ntohs(type)))
			return CHOSEN;
		if ((const void *)(tag + 1) > end)
			return MALFORMED;
		type = tag->type;
	}
	return choose_type(type, tag, end);
}

/*
 * Whether a look is recent enough. It may be newer than `now`, which another CPU read before. One
 * from farther in the future is of another clock: nothing is known then.
 */
static __always_inline int is_recent(__u64 look, __u64 now)
{
	return now - look + lease_ns < 2 * lease_ns;
}

/* Whether somebody reads the queue's socket. A process may be stopped, and keep its sockets. */
static __always_inline int is_attended(__u32 queue)
{
	const volatile __u64 *look = bpf_map_lookup_elem(&looks, &queue);

	return look && is_recent(*look, bpf_ktime_get_coarse_ns());
}

/*
 * Writes in front of the packet when it came. Where there is no room it gets no stamp, which
 * whoever takes stamps sees.
 */
static __always_inline void stamp(struct xdp_md *context)
{
	struct stamp *stamp;

	if (bpf_xdp_adjust_meta(context, -(int)sizeof(*stamp)))
		return;
	stamp = (void *)(long)context->data_meta;
	if ((void *)(stamp + 1) > (void *)(long)context->data)
		return;
	stamp->time = bpf_ktime_get_tai_ns();
	stamp->sealed = stamp->time ^ seal;
}

static __always_inline int run(struct xdp_md *context)
{
	__u32 zero = 0;
	struct counts *count = bpf_map_lookup_elem(&counts, &zero);
	int action = XDP_PASS;

	if (!count)
		return XDP_PASS;
	switch (choose((void *)(long)context->data, (void *)(long)context->data_end)) {
	case CHOSEN:
		action = bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
		if (action != XDP_REDIRECT) {
			count->no_socket++;
		} else if (!is_attended(context->rx_queue_index)) {
			count->unattended++;
			action = XDP_PASS;
		} else {
			count->redirected++;
			if (seal)
				stamp(context);
		}
		break;
	case NOT_CHOSEN:
		count->not_chosen++;
		break;
	case MALFORMED:
		count->malformed++;
		break;
	case FRAGMENT:
		count->fragment++;
		break;
	}
	return action;
}

/* What an expression does not match. */
static __always_inline int leave(void)
{
	__u32 zero = 0;
	struct counts *count = bpf_map_lookup_elem(&counts, &zero);

	if (count)
		count->not_chosen++;
	return XDP_PASS;
}

SEC("xdp")
int cachelane_xsk(struct xdp_md *context)
{
	return run(context);
}

/* The same, for packets that may lie in several buffers: the headers are in the first. */
SEC("xdp.frags")
int cachelane_xskf(struct xdp_md *context)
{
	return run(context);
}

SEC("xdp")
int cachelane_xskn(struct xdp_md *context)
{
	return leave();
}

SEC("xdp.frags")
int cachelane_xsknf(struct xdp_md *context)
{
	return leave();
}

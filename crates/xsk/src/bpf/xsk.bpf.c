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
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "xsk.h"

char LICENSE[] SEC("license") = "GPL";

#define IP_MORE_OR_OFFSET 0x3fff /* not the reserved bit and "don't fragment" */

const volatile enum filter filter;
const volatile __u32 wanted;	      /* the Ethernet type, or the IP protocol */
const volatile __u64 udp_ports[1024]; /* a bit each: port / 64, port % 64 */
const volatile __u64 lease_ns;	      /* a socket not looked at for so long gets no packets */
const volatile __u64 seal;	      /* of stamps; 0: packets get none */

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

enum choice { CHOSEN, NOT_CHOSEN, MALFORMED, FRAGMENT };

struct fragment_header {
	__u8 next;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

static __always_inline enum choice choose_port(const struct udphdr *udp, const void *end)
{
	if ((const void *)(udp + 1) > end || bpf_ntohs(udp->len) < sizeof(*udp))
		return MALFORMED;
	__u16 port = bpf_ntohs(udp->dest);
	return udp_ports[port / 64] >> port % 64 & 1 ? CHOSEN : NOT_CHOSEN;
}

static __always_inline enum choice choose_ipv4(const struct iphdr *ip, const void *end)
{
	if ((const void *)(ip + 1) > end || ip->version != 4 || ip->ihl < 5)
		return MALFORMED;
	if (filter == FILTER_IP_PROTOCOL)
		return ip->protocol == wanted ? CHOSEN : NOT_CHOSEN;
	if (ip->protocol != IPPROTO_UDP)
		return NOT_CHOSEN;
	if (ip->frag_off & bpf_htons(IP_MORE_OR_OFFSET))
		return FRAGMENT;
	return choose_port((const void *)ip + ip->ihl * 4, end);
}

static __always_inline enum choice choose_ipv6(const struct ipv6hdr *ip, const void *end)
{
	const struct fragment_header *fragment = (const void *)(ip + 1);

	if ((const void *)fragment > end || ip->version != 6)
		return MALFORMED;
	if (filter == FILTER_IP_PROTOCOL)
		return ip->nexthdr == wanted ? CHOSEN : NOT_CHOSEN;
	if (ip->nexthdr == IPPROTO_UDP)
		return choose_port((const void *)fragment, end);
	if (ip->nexthdr != IPPROTO_FRAGMENT)
		return NOT_CHOSEN;
	if ((const void *)(fragment + 1) > end)
		return MALFORMED;
	return fragment->next == IPPROTO_UDP ? FRAGMENT : NOT_CHOSEN;
}

/* Whether a packet goes to a socket. Depends on nothing but its bytes and the settings. */
static __always_inline enum choice choose(const void *packet, const void *end)
{
	const struct ethhdr *ethernet = packet;
	const void *payload = ethernet + 1;

	if (filter == FILTER_EVERYTHING)
		return CHOSEN;
	if (payload > end)
		return MALFORMED;
	if (filter == FILTER_ETHERTYPE)
		return bpf_ntohs(ethernet->h_proto) == wanted ? CHOSEN : NOT_CHOSEN;
	if (ethernet->h_proto == bpf_htons(ETH_P_IP))
		return choose_ipv4(payload, end);
	if (ethernet->h_proto == bpf_htons(ETH_P_IPV6))
		return choose_ipv6(payload, end);
	return NOT_CHOSEN;
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

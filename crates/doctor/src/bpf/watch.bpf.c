/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counts where packets are received and freed against where they come from, by lane. It changes
 * nothing, and each CPU writes only what is its own.
 *
 * Of EVERY events a program looks at one: which one is random, since events of two kinds may
 * alternate.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in6.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include <cachelane/maps.h>

#include "watch.h"

char LICENSE[] SEC("license") = "GPL";

/* sys/socket.h comes with too much. */
#define AF_INET		2
#define AF_INET6	10
#define TCP_ESTABLISHED 1
#define MSG_PEEK	2

/* The lane of each CPU, or NO_LANE. */
const volatile __u16 lane_of[CPUS_MAX];

/* Whose numbers the process has as well. */
const volatile struct {
	enum fixed fixed;
	enum event event;
} shared;

PER_CPU_ARRAY(counts, EVENTS, struct counts);

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	int skc_incoming_cpu;
} __attribute__((preserve_access_index));
struct sock {
	struct sock_common __sk_common;
} __attribute__((preserve_access_index));
struct sk_buff {
	__u8 cloned : 1;
	__u16 alloc_cpu; /* Linux 5.19 */
	__be16 protocol;
} __attribute__((preserve_access_index));

/* This CPU's counts of a kind of event, if this one is to be looked at. */
static __always_inline struct counts *turn_of(__u32 event)
{
	struct counts *ours = bpf_map_lookup_elem(&counts, &event);

	if (!ours)
		return NULL;
	if (ours->skip) {
		ours->skip--;
		return NULL;
	}
	/* 0 to 2 * EVERY - 2: EVERY - 1 on average. */
	ours->skip = bpf_get_prandom_u32() % (2 * EVERY - 1);
	return ours;
}

/* An event on this CPU, of a packet that comes from that one. Says whether their lanes differ. */
static __always_inline bool count(struct counts *ours, __u32 from)
{
	__u32 here = bpf_get_smp_processor_id(), lane;
	bool differ;

	if (from >= CPUS_MAX || here >= CPUS_MAX)
		return false;
	lane = lane_of[here];
	if (lane == NO_LANE || lane_of[from] == NO_LANE)
		return false;
	differ = lane_of[from] != lane;
	ours->looked++;
	ours->other_lane += differ;
	return differ;
}

/* Whether the peer has this host's own address, or one of 127.0.0.0/8. */
static __always_inline bool is_local(const struct sock *sk, __u16 family)
{
	__u64 peer[2], own[2];
	__be32 peer4;

	if (family == AF_INET) {
		peer4 = BPF_CORE_READ(sk, __sk_common.skc_daddr);
		return peer4 == BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr) ||
		       (peer4 & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
	}
	/* Not in kernels without IPv6. */
	if (!bpf_core_field_exists(sk->__sk_common.skc_v6_daddr))
		return false;
	bpf_core_read(peer, sizeof(peer), &sk->__sk_common.skc_v6_daddr);
	bpf_core_read(own, sizeof(own), &sk->__sk_common.skc_v6_rcv_saddr);
	return peer[0] == own[0] && peer[1] == own[1];
}

/* A socket knows which CPU last delivered to it, if it is TCP's or connected. */
static __always_inline int on_receive(struct sock *sk)
{
	struct counts *ours = turn_of(EVENT_RECEIVE);
	__u16 family;

	if (!ours)
		return 0;
	family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if ((family == AF_INET || family == AF_INET6) &&
	    BPF_CORE_READ(sk, __sk_common.skc_state) == TCP_ESTABLISHED &&
	    count(ours, BPF_CORE_READ(sk, __sk_common.skc_incoming_cpu)))
		ours->local += is_local(sk, family);
	return 0;
}

/* (socket, bytes or error, flags): an end of file does not count, nor does a look. Linux 6.3. */
SEC("raw_tp/sock_recv_length")
int cachelane_received(struct bpf_raw_tracepoint_args *context)
{
	if ((int)context->args[1] <= 0 || (int)context->args[2] & MSG_PEEK)
		return 0;
	return on_receive((struct sock *)context->args[0]);
}

/* (socket): the consumer of a TCP socket has taken what was received. For kernels without the
 * other. */
SEC("raw_tp/tcp_rcv_space_adjust")
int cachelane_taken(struct bpf_raw_tracepoint_args *context)
{
	return on_receive((struct sock *)context->args[0]);
}

/* A buffer knows which CPU allotted it. Those of local sockets and of netlink, which are buffers as
 * well, have no protocol; of a clone the data may be in use still. */
static __always_inline int on_free(struct sk_buff *skb, __u32 event)
{
	struct counts *ours = turn_of(event);
	__be16 protocol;

	if (!ours || !bpf_core_field_exists(skb->alloc_cpu))
		return 0;
	protocol = BPF_CORE_READ(skb, protocol);
	if ((protocol == bpf_htons(ETH_P_IP) || protocol == bpf_htons(ETH_P_IPV6)) &&
	    !BPF_CORE_READ_BITFIELD_PROBED(skb, cloned))
		count(ours, BPF_CORE_READ(skb, alloc_cpu));
	return 0;
}

/* (buffer, ...) */
SEC("raw_tp/consume_skb")
int cachelane_consumed(struct bpf_raw_tracepoint_args *context)
{
	return on_free((struct sk_buff *)context->args[0], EVENT_CONSUME);
}

/* (buffer, ...) */
SEC("raw_tp/kfree_skb")
int cachelane_dropped(struct bpf_raw_tracepoint_args *context)
{
	return on_free((struct sk_buff *)context->args[0], EVENT_DROP);
}

/* Whether buffers know which CPU allotted them. Run once, at no tracepoint. */
SEC("raw_tp")
int knows_home(void *context)
{
	return bpf_core_field_exists(struct sk_buff, alloc_cpu);
}

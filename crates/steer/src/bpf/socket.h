/* SPDX-License-Identifier: GPL-2.0-only */
/* The flow of a socket. */
#ifndef CACHELANE_STEER_SOCKET_H
#define CACHELANE_STEER_SOCKET_H

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"

/* sys/socket.h comes with too much. */
#define AF_INET		2
#define AF_INET6	10
#define TCP_ESTABLISHED 1
#define MSG_PEEK	2
/* The low half of the second word of an IPv4 address in IPv6, as it stands in memory. */
#define MAPPED_LOW_WORD bpf_htonl(0xffff)

/* The network namespace that the device is in (its inode), whose sockets are recorded. */
const volatile __u32 netns;

/* The network namespace's address, once one of its sockets was seen. */
volatile __u64 our_net;

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));
struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));
typedef struct {
	struct net *net;
} possible_net_t;
struct sock_common {
	__u64 skc_addrpair;
	__u32 skc_portpair;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));
struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
} __attribute__((preserve_access_index));
static __always_inline bool is_ours(__u64 net)
{
	__u64 known = our_net;

	if (known || !net)
		return known == net && net;
	if (BPF_CORE_READ((struct net *)net, ns.inum) != netns)
		return false;
	our_net = net;
	return true;
}

/* (socket, bytes or error, flags): an end of file does not count, nor does a look. */
static __always_inline bool counts_for(const struct bpf_raw_tracepoint_args *context)
{
	return (int)context->args[1] > 0 && !((int)context->args[2] & MSG_PEEK);
}

/* The tuple of packets that a socket receives; false if it is not of a flow that can be steered. */
static __always_inline bool tuple_of_socket(struct sock *sk, struct tuple *tuple)
{
	__u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);
	__u32 ports;

	if (family != AF_INET && family != AF_INET6)
		return false;
	/* Connected UDP has it too. */
	if (BPF_CORE_READ(sk, __sk_common.skc_state) != TCP_ESTABLISHED)
		return false;
	if (!is_ours((__u64)BPF_CORE_READ(sk, __sk_common.skc_net.net)))
		return false;
	tuple->protocol = BPF_CORE_READ(sk, sk_protocol);
	if (tuple->protocol != IPPROTO_TCP && tuple->protocol != IPPROTO_UDP)
		return false;
	bpf_core_read(&ports, sizeof(ports), &sk->__sk_common.skc_portpair);
	/* struct sock_common has the peer's port as it is sent, and then ours as a number. */
	__builtin_memcpy(&tuple->source, &ports, sizeof(tuple->source));
	__builtin_memcpy(&tuple->destination, (void *)&ports + 2, sizeof(tuple->destination));
	tuple->destination = bpf_htons(tuple->destination);
	if (family == AF_INET6) {
		bpf_core_read(&tuple->addresses[0], 16, &sk->__sk_common.skc_v6_daddr);
		tuple->ipv6 = tuple->addresses[0] || (__u32)tuple->addresses[1] != MAPPED_LOW_WORD;
	}
	if (tuple->ipv6) {
		bpf_core_read(&tuple->addresses[2], 16, &sk->__sk_common.skc_v6_rcv_saddr);
	} else {
		bpf_core_read(&tuple->addresses[0], 8, &sk->__sk_common.skc_addrpair);
		tuple->addresses[1] = 0;
	}
	return true;
}

#endif

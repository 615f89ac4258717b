// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sockmap engine of the relay: moves one direction of a connection from its source socket to
 * its target socket inside the kernel, under a governor.
 *
 * A stock redirect takes data off the source at once and queues it on the target without limit
 * and without accounting. Here a packet is redirected only if, with it, at most `budget` bytes
 * are on their way to the target's peer unacknowledged. Past that it is passed to the source's
 * own receive queue, where the kernel accounts for it, so the source's window closes and the
 * sender slows down. User space forwards what was passed.
 *
 * Packets that are small on average are passed too: user space coalesces them, while each
 * redirect costs as much as a large one.
 *
 * Order: once a packet was passed, all later ones are, until user space says that it has
 * forwarded every passed byte. User space in turn forwards nothing before the target's peer has
 * acknowledged every redirected byte.
 *
 * Sleep: a redirected packet tells user space nothing. So when a flow has gone quiet, user space
 * asks for all packets, and waits for the event of the first one, instead of looking again and
 * again.
 *
 * Overlap: a retransmitted packet may begin with bytes that were received before. recv(2) skips
 * them; the kernel hands a verdict the whole packet (tcp_read_skb), so that they would be sent
 * twice. Here they are cut off.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "sockmap.h"

/* Packets smaller than this on average, in bytes, are left to user space. 4 KiB is where copying
 * and redirecting cost the same: `cachelane bench relay --only engines`. */
const volatile __u32 smallest = 4096;

/* Only what is read of the kernel's structs; the offsets are relocated at load. */
struct tcp_sock {
	__u64 bytes_acked;
	__u32 copied_seq;
} __attribute__((preserve_access_index));

struct sk_buff {
	char cb[48];
} __attribute__((preserve_access_index));

/* What TCP keeps in sk_buff.cb. */
struct tcp_skb_cb {
	__u32 seq;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;

/* The most that bpf_skb_adjust_room cuts off at once, and how often it takes to cut off the
 * largest packet that there is (BIG TCP: 512 KiB). */
#define TRIM_STEP  0xfff
#define TRIM_STEPS 130

/* Sockets whose data the verdict sees. The program is attached to this map. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, __u32);
	__type(value, __u64);
} sources SEC(".maps");

/* Sockets that data is sent to. No program: what they receive takes the usual way. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, __u32);
	__type(value, __u64);
} targets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the loader */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, __u32);
	__type(value, struct progress);
} progress SEC(".maps");

static __always_inline int may_redirect(const struct flow *flow, __u64 forwarded, __u64 acked,
					__u64 len)
{
	__u64 sent = flow->base + flow->redirected + forwarded;

	return flow->average >= smallest && flow->passed == forwarded &&
	       sent - acked + len <= flow->budget;
}

/* The target's acknowledged bytes; 0 where the target is gone, which reads as a full budget. */
static __always_inline __u64 target_acked(__u32 slot)
{
	struct bpf_sock *target = bpf_map_lookup_elem(&targets, &slot);
	struct tcp_sock *tcp;
	__u64 acked = 0;

	if (!target)
		return 0;
	tcp = bpf_skc_to_tcp_sock(target);
	if (tcp)
		acked = tcp->bytes_acked;
	bpf_sk_release(target);
	return acked;
}

/* Bytes at the start of the packet that were received before. */
static __always_inline __u32 overlap(struct __sk_buff *skb, struct flow *flow)
{
	struct sk_buff *packet = bpf_cast_to_kern_ctx(skb);
	__u32 seq = flow->next, len = skb->len;
	__s32 before;

	if (!flow->redirected && !flow->passed) {
		struct tcp_sock *source = skb->sk ? bpf_skc_to_tcp_sock(skb->sk) : 0;

		if (source)
			flow->next = source->copied_seq;
	}
	if (bpf_core_read(&seq, sizeof(seq), &((struct tcp_skb_cb *)packet->cb)->seq))
		return 0;
	before = flow->next - seq;
	return before < 0 ? 0 : before < len ? before : len;
}

static __always_inline int trim(struct __sk_buff *skb, __u32 bytes)
{
	for (int i = 0; i < TRIM_STEPS && bytes; i++) {
		__u32 step = bytes < TRIM_STEP ? bytes : TRIM_STEP;

		if (bpf_skb_adjust_room(skb, -(__s32)step, 0, 0))
			break;
		bytes -= step;
	}
	return bytes == 0;
}

SEC("sk_skb/verdict")
int relay_verdict(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb);
	struct flow *flow = bpf_map_lookup_elem(&flows, &cookie);
	struct progress *done;
	__u64 len = skb->len;
	__u32 slot, again;
	__u64 asleep;

	/* A bare FIN. Queued on the target it would read as a broken pipe there, and the socket's
	 * own state tells user space of the end. */
	if (!len)
		return SK_DROP;
	if (!flow)
		return SK_PASS;
	slot = flow->slot;
	done = bpf_map_lookup_elem(&progress, &slot);
	if (!done)
		return SK_PASS;
	again = overlap(skb, flow);
	if (again) {
		if (!trim(skb, again)) {
			flow->lost++;
			return SK_DROP;
		}
		flow->trimmed += again;
		len -= again;
		if (!len)
			return SK_DROP;
	}
	flow->next += len;
	flow->average += (len >> 3) - (flow->average >> 3);
	asleep = done->asleep;
	if (asleep || !may_redirect(flow, done->forwarded, target_acked(slot), len)) {
		if (!asleep && flow->passed == done->forwarded)
			flow->held++;
		flow->passed += len;
		return SK_PASS;
	}
	flow->redirected += len;
	return bpf_sk_redirect_map(skb, &targets, slot, 0);
}

char LICENSE[] SEC("license") = "GPL";

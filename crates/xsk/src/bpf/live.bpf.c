/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Makes UDP packets and sends them out of a device as XDP frames, without socket buffers.
 *
 *   make    Run by BPF_PROG_TEST_RUN with live frames, on a thread of the process. A frame's memory
 * is used again, and whoever had it before may have written to it: so all headers are written each
 * time. sent    At the tracepoint where a device has taken a batch of redirected frames: counts
 * those of the thread.
 */
#include <stdbool.h>

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "live.h"

char LICENSE[] SEC("license") = "GPL";

#define MAGIC	0xc1a7	 /* of a probe */
#define BATCH	64	 /* frames that have one time in their probes */
#define SPINS	50000	 /* looks at the clock for one frame: a millisecond */
#define ARREARS 10000000 /* nanoseconds that a sender that was held up may catch up */

/* Whose numbers the process has as well. */
const volatile struct {
	enum live_size size;
} shared;

/* Fixed at load. */
const volatile __u32 device;	       /* the index of the device that frames go out of */
const volatile __u32 thread;	       /* that runs `make` */
const volatile __u64 head[HEAD_WORDS]; /* the first bytes of each frame */
const volatile __u32 words;	       /* of `head` that are written */
const volatile __u32 udp;	       /* where the UDP header begins */
const volatile __u32 fixed;	       /* what the UDP checksum covers, without the ports */
const volatile __u16 sources[2];       /* the first and the last UDP port that frames come from */
const volatile __u16 targets[2];       /* and that they go to */
const volatile bool probes;	       /* frames carry a probe */
const volatile __u64 stream;	       /* in which they are, in 48 bits */
const volatile __u64 gap;	       /* GAP_PARTS of a nanosecond between two frames; 0: none */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct live_state);
} state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct live_counts);
} counts SEC(".maps");

/* Not 0: what is left of a run is dropped where it is made. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} stopped SEC(".maps");

struct net_device {
	int ifindex;
} __attribute__((preserve_access_index));

static __always_inline __u32 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The sum of a number's four words, which the Internet checksum folds. */
static __always_inline __u32 sum_of(__u64 number)
{
	return (number & 0xffff) + (number >> 16 & 0xffff) + (number >> 32 & 0xffff) +
	       (number >> 48);
}

static __always_inline void next_ports(struct live_state *now)
{
	if (now->source < sources[1]) {
		now->source++;
		return;
	}
	now->source = sources[0];
	now->target = now->target < targets[1] ? now->target + 1 : targets[0];
}

/* Ports, and the checksum over them. */
static __always_inline void write_ports(__u8 *header, const struct live_state *now)
{
	__u16 sum = ~fold(fixed + now->source + now->target);

	*(__be16 *)header = bpf_htons(now->source);
	*(__be16 *)(header + 2) = bpf_htons(now->target);
	*(__be16 *)(header + 6) = bpf_htons(sum ? sum : 0xffff);
}

/* The sum of a probe is zero, as that of the empty one in the template is: the checksum holds. */
static __always_inline void write_probe(__u8 *probe, struct live_state *now)
{
	__u64 first = (__u64)MAGIC << 48 | (now->number & 0xffffffffffff);
	__u64 second = now->nanoseconds << 16 | stream >> 32;
	__u32 third = stream;
	__u16 guard = ~fold(sum_of(first) + sum_of(second) + sum_of(third));

	*(__be64 *)probe = bpf_cpu_to_be64(first);
	*(__be64 *)(probe + 8) = bpf_cpu_to_be64(second);
	*(__be32 *)(probe + 16) = bpf_htonl(third);
	*(__be16 *)(probe + 20) = bpf_htons(guard);
	now->number++;
}

static long is_due(__u32 number, const __u64 *due)
{
	return bpf_ktime_get_ns() >= *due;
}

/* Waits until the next frame is due. Softirqs wait as well, for a batch of the kernel's at most. */
static __always_inline void keep_pace(struct live_state *now)
{
	__u64 time = bpf_ktime_get_ns(), due;

	if (time > now->due + ARREARS)
		now->due = time;
	due = now->due;
	if (time < due)
		bpf_loop(SPINS, is_due, &due, 0);
	now->due_parts += gap % GAP_PARTS;
	now->due += gap / GAP_PARTS + now->due_parts / GAP_PARTS;
	now->due_parts %= GAP_PARTS;
}

SEC("xdp")
int cachelane_make(struct xdp_md *context)
{
	void *data = (void *)(long)context->data, *end = (void *)(long)context->data_end;
	const __u32 zero = 0;
	const __u32 *is_stopped = bpf_map_lookup_elem(&stopped, &zero);
	struct live_state *now = bpf_map_lookup_elem(&state, &zero);

	if (!now || !is_stopped || *is_stopped)
		return XDP_DROP;
	if (gap)
		keep_pace(now);
	if (data + words * 8 > end || data + udp + 8 > end)
		return XDP_DROP;
	for (__u32 word = 0; word < HEAD_WORDS; word++) {
		if (word < words)
			((__u64 *)data)[word] = head[word];
	}
	if (sources[0] != sources[1] || targets[0] != targets[1]) {
		write_ports(data + udp, now);
		next_ports(now);
	}
	if (probes) {
		if (data + udp + 8 + PROBE > end)
			return XDP_DROP;
		if (!now->left) {
			now->nanoseconds = bpf_ktime_get_ns();
			now->left = BATCH;
		}
		now->left--;
		write_probe(data + udp + 8, now);
	}
	return bpf_redirect(device, 0);
}

/* (from, to, sent, dropped, error) */
SEC("raw_tp/xdp_devmap_xmit")
int cachelane_sent(struct bpf_raw_tracepoint_args *context)
{
	const struct net_device *to = (void *)context->args[1];
	const __u32 zero = 0;
	struct live_counts *ours = bpf_map_lookup_elem(&counts, &zero);

	if (!ours || (__u32)bpf_get_current_pid_tgid() != thread ||
	    (__u32)BPF_CORE_READ(to, ifindex) != device)
		return 0;
	ours->sent += (__u32)context->args[2];
	ours->dropped += (__u32)context->args[3];
	return 0;
}

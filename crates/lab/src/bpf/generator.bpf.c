/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Frames made inside the kernel, and where they end: generators for benches, whose own cost is a
 * fraction of what handling a frame costs, and a sink that counts and drops.
 *
 * The generators are run by BPF_PROG_TEST_RUN on a frame that the process gives them:
 *
 *   inject       Each copy of the frame has memory of its own and goes through the backlog of the
 *                CPU that makes it, as a frame does that a veth's peer has sent.
 *   send_live    Run with live frames, which a device's driver hands to XDP as a network card's
 *                does: no socket buffer is made of them on this side. Each goes out of a device,
 *                from the next of so many UDP source ports.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

enum fixed {
	/* Copies a run: what a CPU's backlog takes at once (net.core.dev_weight). */
	BATCH = 64,
	/* The addresses of injected frames; from the blocks for documentation. */
	SOURCE = 0xc0000201,
	TARGET = 0xc0000202,
	/* Where the UDP source port is: behind Ethernet and an IPv4 header without options. */
	SOURCE_PORT = 34,
};

/* What the process says; one number each. */
enum setting {
	DEVICE,	      /* index of the device that receives injected frames, or sends live ones */
	SOURCES,      /* stations that they come from */
	FIRST_SOURCE, /* the last four bytes of the first one's address */
	TARGETS,      /* stations that they go to */
	FIRST_TARGET,
	FIRST_PORT, /* the first source port of live frames */
	PORTS,	    /* how many there are; 0: frames are dropped here */
	SETTINGS,
};

/* What the programs count, each on its own CPU. */
enum count {
	INJECTED, /* frames that the device received */
	ARRIVED,  /* frames at the sink */
	SENT,	  /* live frames */
	COUNTS,
};

/* Whose numbers Rust has as well. */
const volatile struct {
	enum fixed fixed;
	enum setting setting;
	enum count count;
} shared;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SETTINGS);
	__type(key, __u32);
	__type(value, __u32);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline __u32 setting(__u32 which)
{
	const __u32 *value = bpf_map_lookup_elem(&settings, &which);

	return value ? *value : 0;
}

static __always_inline void count(__u32 which, __u64 more)
{
	__u64 *value = bpf_map_lookup_elem(&counts, &which);

	if (value)
		*value += more;
}

/* Writes the end of a random station's address, `offset` bytes into the frame. */
static __always_inline void draw(struct __sk_buff *skb, __u32 offset, __u32 first, __u32 stations)
{
	__u32 end = bpf_htonl(first + bpf_get_prandom_u32() % stations);

	bpf_skb_store_bytes(skb, offset, &end, sizeof(end), 0);
}

/* One run's settings and what it has come to. */
struct run {
	struct __sk_buff *skb;
	__u32 device, sources, first_source, targets, first_target;
	__u32 refused;
};

static long inject_frame(__u32 number, struct run *run)
{
	/* Both or none: so the frames cost the same, whichever side has how many. */
	if (run->sources > 1 || run->targets > 1) {
		draw(run->skb, offsetof(struct ethhdr, h_source) + 2, run->first_source,
		     run->sources);
		draw(run->skb, offsetof(struct ethhdr, h_dest) + 2, run->first_target,
		     run->targets);
	}
	if (bpf_clone_redirect(run->skb, run->device, BPF_F_INGRESS))
		run->refused++;
	return 0;
}

SEC("tc")
int inject(struct __sk_buff *skb)
{
	struct run run = {
		.skb = skb,
		.device = setting(DEVICE),
		.sources = setting(SOURCES),
		.first_source = setting(FIRST_SOURCE),
		.targets = setting(TARGETS),
		.first_target = setting(FIRST_TARGET),
	};

	bpf_loop(BATCH, inject_frame, &run, 0);
	count(INJECTED, BATCH - run.refused);
	return TC_ACT_OK;
}

SEC("xdp")
int send_live(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	const __u32 sent = SENT;
	__u32 ports = setting(PORTS);
	__u64 *number = bpf_map_lookup_elem(&counts, &sent);

	if (!number || !ports || (void *)(data + SOURCE_PORT + 2) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	*(__u16 *)(data + SOURCE_PORT) = bpf_htons(setting(FIRST_PORT) + (*number)++ % ports);
	return bpf_redirect(setting(DEVICE), 0);
}

SEC("tc")
int sink(struct __sk_buff *skb)
{
	const struct ethhdr *eth = (void *)(long)skb->data;
	const struct iphdr *ip = (void *)(eth + 1);

	if ((void *)(ip + 1) > (void *)(long)skb->data_end)
		return TC_ACT_UNSPEC;
	if (eth->h_proto != bpf_htons(ETH_P_IP) || ip->daddr != bpf_htonl(TARGET) ||
	    ip->saddr != bpf_htonl(SOURCE))
		return TC_ACT_UNSPEC;
	count(ARRIVED, 1);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";

// SPDX-License-Identifier: GPL-2.0
/*
 * Frames that a device's driver hands to XDP, as a network card's does: no socket buffer is made
 * of them on this side. Run by BPF_PROG_TEST_RUN with live frames on a frame that the process gives
 * it; each goes out of a device, from the next of so many UDP source ports.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Where the UDP source port is: behind Ethernet and an IPv4 header without options. */
#define SOURCE_PORT 34

/* What the process says; one number each. */
enum setting {
	DEVICE,	    /* index of the device that sends the frames */
	FIRST_PORT, /* the first source port */
	PORTS,	    /* how many there are; 0: frames are dropped here */
	SETTINGS,
};

/* Whose numbers Rust has as well. */
const volatile enum setting shared;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SETTINGS);
	__type(key, __u32);
	__type(value, __u32);
} settings SEC(".maps");

/* Frames so far, on each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sent SEC(".maps");

static __always_inline __u32 setting(__u32 which)
{
	const __u32 *value = bpf_map_lookup_elem(&settings, &which);

	return value ? *value : 0;
}

SEC("xdp")
int send_live(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	const __u32 zero = 0;
	__u32 ports = setting(PORTS), *number = bpf_map_lookup_elem(&sent, &zero);

	if (!number || !ports || (void *)(data + SOURCE_PORT + 2) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	*(__u16 *)(data + SOURCE_PORT) = bpf_htons(setting(FIRST_PORT) + (*number)++ % ports);
	return bpf_redirect(setting(DEVICE), 0);
}

char LICENSE[] SEC("license") = "GPL";

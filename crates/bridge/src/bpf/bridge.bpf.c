/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The packet path: a tcx ingress program on every port of a bridge. It sends a frame on only
 * where the bridge would do exactly that, and leaves every other frame to the bridge.
 *
 * What it reads is written by the process, which follows the bridge by netlink. The lines that it
 * writes belong to the CPU that it runs on: its counts and, with the split table, its stamps.
 *
 * The kernel forgets a station that it does not see. So that it sees one whose frames are sent on
 * here, a frame of it is copied now and then: the copy is put before the port again, to the address
 * for LLDP, which the bridge learns from and forwards nowhere, and with a length of 0 instead of a
 * protocol, so that it ends at the first look of LLC, without being counted as dropped. The frame
 * itself goes where all of its flow goes, and nothing overtakes it.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "bridge.h"
#include "rules.h"

char LICENSE[] SEC("license") = "GPL";

/* linux/if_ether.h has them only where it is recent. */
#define ETHERTYPE_CFM 0x8902
#define ETHERTYPE_MRP 0x88e3
/* An Ethernet header and that of a PPPoE session: shorter frames br_netfilter drops, whatever it
 * claims. */
#define PPPOE_LEN (ETH_HLEN + 8)
/* Where copies go: the nearest bridge, for LLDP. */
#define COPY_TARGET                                                                                \
	{                                                                                          \
		0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e                                                 \
	}
/* What a tcx program returns to let the next one look; linux/bpf.h has it from 6.6 on. */
#define NEXT -1

/* What the hash is keyed with, so that nobody can choose addresses that fall together; and how far
 * it is shifted: there are 2^(64 - hash_shift) buckets. */
const volatile __u64 hash_seed;
const volatile __u32 hash_shift;
/* What marks a copy (skb->mark); nobody else knows it. */
const volatile __u32 copy_mark;

/* Whose bridge this is. As a constant it is there as soon as the program is, and until it goes. */
const volatile struct owner owner;

/* Until when the packet path believes what the process has written, in jiffies: a process that is
 * stopped, or waits for a CPU, follows nothing. */
__u64 lease_until;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE); /* nobody maps it: for buckets that are cache lines */
	__uint(max_entries, 1);		   /* set at load */
	__type(key, __u32);
	__type(value, struct bucket);
} table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct stamp);
} stamps SEC(".maps");

/* The same for all CPUs, as the kernel's own table has it: there to measure against. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set at load */
	__type(key, __u32);
	__type(value, struct stamp);
} shared_stamps SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024); /* the most ports that a bridge has (BR_MAX_PORTS) */
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} counts SEC(".maps");

/* How many packets of a port have got here, by interface index, where programs before ours may keep
 * them. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC); /* most bridges need none */
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} arrivals SEC(".maps");

/* Keys of stations that were seen on another port. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} moved SEC(".maps");

/* The table's key of an address, without a VLAN. */
static __always_inline __u64 key_of(const unsigned char *mac)
{
	__u64 key = 0;

	__builtin_memcpy(&key, mac, ETH_ALEN);
	return key;
}

/* The bucket where a key belongs. The mixing is MurmurHash3's (fmix64): addresses come in rows,
 * which a single multiplication leaves in heaps. */
static __always_inline __u32 home_of(__u64 key)
{
	__u64 hash = key ^ hash_seed;

	hash ^= hash >> 33;
	hash *= 0xff51afd7ed558ccd;
	hash ^= hash >> 33;
	hash *= 0xc4ceb9fe1a85ec53;
	return hash >> (hash_shift & 63);
}

/* Returns `at`, by way of the key that was read: a CPU that reorders reads still reads what this
 * addresses after the key, and so sees what was written before that key (see write_station). A
 * load-acquire would say the same, but BPF has it from Linux 6.15 on. */
static __always_inline __u32 after(__u32 at, __u64 key)
{
	__u64 nothing = key;

	/* Hidden from the compiler, which would make it 0. */
	asm volatile("%0 ^= %1" : "+r"(nothing) : "r"(key));
	return (at + nothing) % BUCKET_STATIONS;
}

/* Where a key stands, beginning with the bucket `home`; as key 0, where there is room. */
static __always_inline struct bucket *find(__u64 key, __u32 home, __u32 *at)
{
	for (__u32 try = 0; try < BUCKETS_TRIED; try++) {
		__u32 index = home ^ try;
		struct bucket *bucket = bpf_map_lookup_elem(&table, &index);

		if (!bucket)
			return NULL;
#pragma unroll
		for (__u32 i = 0; i < BUCKET_STATIONS; i++) {
			__u64 there = *(volatile __u64 *)&bucket->keys[i], read = there;

			/* Otherwise the compiler takes `key`, which it is equal to, for it. */
			asm volatile("" : "+r"(read));
			if (there != key)
				continue;
			*at = after(i, read);
			return bucket;
		}
	}
	return NULL;
}

static __always_inline struct station *find_station(__u64 key)
{
	__u32 at = 0;
	/* Nobody has address zero: it would find where there is room. */
	struct bucket *bucket = key ? find(key, home_of(key), &at) : NULL;

	return bucket ? &bucket->stations[at % BUCKET_STATIONS] : NULL;
}

/* A station as a whole: place and mark belong together. */
static __always_inline struct station read_station(const struct station *station)
{
	__u64 whole = *(const volatile __u64 *)station;
	struct station copy;

	__builtin_memcpy(&copy, &whole, sizeof(copy));
	return copy;
}

static __always_inline const struct port *port_of(struct station station)
{
	__u32 slot = station.place & STATION_PORT_MASK;

	return bpf_map_lookup_elem(&ports, &slot);
}

/* Whether a frame may be neighbour discovery. */
static __always_inline int may_be_nd(const struct ethhdr *eth, const void *end)
{
	const struct ipv6hdr *ip = (void *)(eth + 1);

	return (void *)(ip + 1) > end || ip->nexthdr == IPPROTO_ICMPV6;
}

/* Whether the kernel has to see this frame's protocol, whatever its addresses. */
static __always_inline int is_kernels(const struct __sk_buff *skb, const struct ethhdr *eth,
				      __u32 kernel_ethertypes)
{
	const void *end = (void *)(long)skb->data_end;

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

/* Suspends a station that shows up on another port, and has the process look at it: from now on
 * the kernel alone knows where it is. Each time counts, so that the process can tell whether one
 * came while it looked. */
static __always_inline void report_move(struct station *station, __u64 key)
{
	struct station now = read_station(station);
	__u32 before;

	/* Far from where it would wrap to 0, which is settled. */
	if (now.place & STATION_FIXED || now.unsettled >> 31)
		return;
	before = __sync_fetch_and_add(&station->unsettled, 1);
	/* At times again, as the ring may have been full. */
	if (before % 256 == 0)
		bpf_ringbuf_output(&moved, &key, sizeof(key), 0);
}

/* The way of a frame that is sent on. */
struct way {
	const struct port *to;
	int straight;	     /* into the peer's namespace */
	struct stamp *stale; /* the source's stamp, if a copy is due */
	__u32 now;
	int urgent; /* without a copy this frame has to take the kernel path */
};

/* Whether this CPU may make a copy that could wait. */
static __always_inline int may_copy(const struct settings *set, struct counts *count, __u32 now)
{
	if (count->jiffy != now) {
		count->jiffy = now;
		count->in_jiffy = 0;
	}
	return count->in_jiffy++ < set->copies;
}

/* Stamps the station, at most once a jiffy, and sees whether the kernel has to be shown that it is
 * there. Returns whether this frame has to show it; or has `way` say that a copy is due. */
static __always_inline int refresh_due(struct station station, const struct port *in,
				       const struct settings *set, struct counts *count,
				       struct way *way)
{
	__u32 slot = station.place >> STATION_SLOT_SHIFT;
	__u32 now = bpf_jiffies64(), age;
	struct stamp *stamp;

	if (set->shared)
		stamp = bpf_map_lookup_elem(&shared_stamps, &slot);
	else
		stamp = bpf_map_lookup_elem(&stamps, &slot);
	if (!stamp)
		return 1;
	if (stamp->seen != now)
		stamp->seen = now;
	age = now - stamp->refreshed;
	if (station.place & STATION_AGELESS || !(in->flags & PORT_REFRESH))
		return 0;
	/* A bridge that forgets at once learns nothing from a copy either. */
	if (in->flags & PORT_COPY && set->refresh_every) {
		way->urgent = age >= set->refresh_every;
		if (way->urgent || (age >= set->copy_every && may_copy(set, count, now)))
			way->stale = stamp;
		way->now = now;
		return 0;
	}
	if (age < set->refresh_every)
		return 0;
	stamp->refreshed = now;
	return 1;
}

/* What stands against forwarding between two ports; REASONS if nothing does. */
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
	return REASONS;
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

/* Finds the way for a frame, or a reason to leave it to the kernel; REASONS if there is none. */
static __always_inline enum reason route(struct __sk_buff *skb, const struct settings *set,
					 struct counts *count, struct way *way)
{
	const struct ethhdr *eth = (void *)(long)skb->data;
	struct station *known, *other, source = {}, target;
	const struct port *in = NULL, *out;
	__u64 source_key, target_key;
	enum reason reason;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return REASON_SHORT;
	source_key = key_of(eth->h_source);
	target_key = key_of(eth->h_dest);
	/* The bridge drops what comes from nobody or from a group, be it in its table. */
	if (!source_key || eth->h_source[0] & 1)
		return REASON_UNKNOWN_SRC;
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
	if (skb->vlan_present || eth->h_proto == bpf_htons(ETH_P_8021Q) ||
	    eth->h_proto == bpf_htons(ETH_P_8021AD))
		return REASON_VLAN;
	if (eth->h_dest[0] & 1)
		return REASON_GROUP;
	if (skb->pkt_type == PACKET_LOOPBACK || is_kernels(skb, eth, set->kernel_ethertypes))
		return REASON_PROTOCOL;

	if (!known || !in)
		return REASON_UNKNOWN_SRC;
	other = find_station(target_key);
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
	if (reason != REASONS)
		return reason;
	if (is_ruled(skb, out, eth->h_proto))
		return REASON_RULES;
	if (refresh_due(source, in, set, count, way))
		return REASON_REFRESH;
	way->straight =
		out->flags & PORT_STRAIGHT && out->peer_key == target_key && is_whole(out, skb);
	way->to = out;
	return REASONS;
}

/* Puts a copy of the frame before its port again that the bridge learns from and nobody gets.
 * Returns whether there is one; less than 0 if the frame is spoilt, for want of memory. */
static __always_inline int send_copy(struct __sk_buff *skb)
{
	struct ethhdr header, copied = {.h_dest = COPY_TARGET};
	__u32 mark = skb->mark;
	int failed;

	if (bpf_skb_load_bytes(skb, 0, &header, sizeof(header)))
		return 0;
	__builtin_memcpy(copied.h_source, header.h_source, ETH_ALEN);
	/* By helper: a program that writes packets by itself has each packet made writable first.
	 */
	if (bpf_skb_store_bytes(skb, 0, &copied, sizeof(copied), 0))
		return 0;
	skb->mark = copy_mark;
	failed = bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	skb->mark = mark;
	if (bpf_skb_store_bytes(skb, 0, &header, sizeof(header), 0))
		return -1;
	return !failed;
}

/* Whether this is a copy that comes back. */
static __always_inline int is_copy(const struct __sk_buff *skb)
{
	const struct ethhdr copied = {.h_dest = COPY_TARGET};
	const struct ethhdr *eth = (void *)(long)skb->data;

	return skb->mark == copy_mark && (void *)(eth + 1) <= (void *)(long)skb->data_end &&
	       key_of(eth->h_dest) == key_of(copied.h_dest) && !eth->h_proto;
}

/* What to do with a copy: the bridge learns from it, unless its station has shown up on another
 * port since it was made. Then the bridge knows better, or will in a moment. */
static __always_inline int take_copy(struct __sk_buff *skb)
{
	const struct ethhdr *eth = (void *)(long)skb->data;
	const struct station *known;
	const struct port *in;
	struct station source;

	if ((void *)(eth + 1) > (void *)(long)skb->data_end)
		return TC_ACT_SHOT;
	known = find_station(key_of(eth->h_source));
	if (!known)
		return TC_ACT_SHOT;
	source = read_station(known);
	in = port_of(source);
	if (source.unsettled || !in || in->index != skb->ifindex)
		return TC_ACT_SHOT;
	/* The bridge has begun to forward what goes there, or somebody to watch. */
	if (!(in->flags & PORT_COPY))
		return TC_ACT_SHOT;
	skb->mark = 0;
	return NEXT;
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
		return take_copy(skb);
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
	if (reason < REASONS) {
		count->kernel[reason]++;
		return NEXT;
	}
	if (!way.to)
		return NEXT;
	count->bytes += skb->len;
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

/* Writes a station as a whole. A full barrier, the partner of after(): whoever finds the key that
 * is written after it finds this station too, which nobody believes before it is settled. */
static __always_inline void write_station(struct station *station, struct station value)
{
	__u64 whole;

	__builtin_memcpy(&whole, &value, sizeof(whole));
	__sync_lock_test_and_set((__u64 *)station, whole);
}

static __always_inline int write_new(__u64 key, struct station value)
{
	__u32 at = 0;
	struct bucket *bucket = key ? find(0, home_of(key), &at) : NULL;

	if (!bucket)
		return 0;
	at %= BUCKET_STATIONS;
	write_station(&bucket->stations[at], value);
	*(volatile __u64 *)&bucket->keys[at] = key;
	return 1;
}

/* What is left where a station was: on no port, and never believed. */
static __always_inline int remove_key(__u64 key)
{
	struct station nobody = {.unsettled = 1};
	__u32 at = 0;
	struct bucket *bucket = key ? find(key, home_of(key), &at) : NULL;

	if (!bucket)
		return 0;
	at %= BUCKET_STATIONS;
	write_station(&bucket->stations[at], nobody);
	*(volatile __u64 *)&bucket->keys[at] = 0;
	return 1;
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

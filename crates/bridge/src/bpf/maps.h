/* SPDX-License-Identifier: GPL-2.0-only */
/* What is fixed when the programs are loaded, and their maps. */
#ifndef CACHELANE_BRIDGE_MAPS_H
#define CACHELANE_BRIDGE_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "bridge.h"

/* Whose numbers the process has as well. */
const volatile struct {
	enum reason reason;
	enum fixed fixed;
	enum station_bit station_bit;
	enum port_flag port_flag;
	enum kernel_ethertype kernel_ethertype;
} shared;

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

#endif

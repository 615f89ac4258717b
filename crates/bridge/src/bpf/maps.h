/* SPDX-License-Identifier: GPL-2.0-only */
/* What is fixed when the programs are loaded, and their maps. */
#ifndef CACHELANE_BRIDGE_MAPS_H
#define CACHELANE_BRIDGE_MAPS_H

#include <cachelane/maps.h>

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

ALIGNED_ARRAY(table, SET_AT_LOAD, struct bucket);
PER_CPU_ARRAY(stamps, SET_AT_LOAD, struct stamp);
/* The same for all CPUs, as the kernel's own table has it: there to measure against. */
ARRAY(shared_stamps, SET_AT_LOAD, struct stamp);
ARRAY(ports, 1024 /* the most that a bridge has (BR_MAX_PORTS) */, struct port);
/* Whose frames are in which VLAN, where the bridge looks at VLANs: arrays, as a hash map for each
 * frame costs more than all the rest that there is to it. */
ARRAY(inlets, INLET_BUCKETS, struct inlet_bucket);
ALIGNED_ARRAY(vlans, SET_AT_LOAD, struct vlans);
ARRAY(settings, 1, struct settings);
PER_CPU_ARRAY(counts, 1, struct counts);
/* How many packets of a port have got here, by interface index, where programs before ours may keep
 * them. Most bridges need none. */
MAP(arrivals, PERCPU_HASH, 1024, __u64, BPF_F_NO_PREALLOC);

/* Keys of stations that were seen on another port. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} moved SEC(".maps");

#endif

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The table of stations: found by the packet path, which writes nothing in it but how unsettled a
 * station is, and edited by one program that the process runs.
 */
#ifndef CACHELANE_BRIDGE_TABLE_H
#define CACHELANE_BRIDGE_TABLE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"

/* An address alone, as a number. */
static __always_inline __u64 number_of(const unsigned char *mac)
{
	__u64 number = 0;

	__builtin_memcpy(&number, mac, ETH_ALEN);
	return number;
}

/* The table's key of an address in a VLAN; 0: the bridge looks at no VLANs. */
static __always_inline __u64 key_of(const unsigned char *mac, __u16 vlan)
{
	__u64 key = number_of(mac);

	__builtin_memcpy((unsigned char *)&key + ETH_ALEN, &vlan, sizeof(vlan));
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

#endif

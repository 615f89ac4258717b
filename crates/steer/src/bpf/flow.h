/* SPDX-License-Identifier: GPL-2.0-only */
/* A flow, as its packets to this host show it, and its keyed hash. */
#ifndef CACHELANE_STEER_FLOW_H
#define CACHELANE_STEER_FLOW_H

#include "steer.h"

/* Random for each process, so that nobody outside can choose flows that share a set. The
 * multipliers are odd. */
const volatile __u64 hash_keys[5];

/* A flow's addresses and ports in the order of the network, the sender's first. */
struct tuple {
	__u64 addresses[4]; /* IPv4: both in the first, and zeros */
	__u16 source;
	__u16 destination;
	__u16 protocol;
	__u16 ipv6; /* not 0: all four words of addresses count */
};
_Static_assert(sizeof(struct tuple) == 40, "struct tuple has padding");

/* One step of multiply-shift hashing (Dietzfelbinger and others, 1997): the key is the multiplier,
 * so which inputs meet depends on it. The fold brings the good high bits down for the next. */
static __always_inline __u64 mix(__u64 hash, __u64 word, __u64 multiplier)
{
	hash = (hash + word) * multiplier;
	return hash ^ hash >> 32;
}

/* Never 0. IPv4 in IPv6 hashes like IPv4, since its tuple is one. */
static __always_inline __u32 hash_of(const struct tuple *tuple)
{
	__u64 hash = mix(hash_keys[0], tuple->addresses[0], hash_keys[1]);

	if (tuple->ipv6) {
		hash = mix(hash, tuple->addresses[1], hash_keys[2]);
		hash = mix(hash, tuple->addresses[2], hash_keys[3]);
		hash = mix(hash, tuple->addresses[3], hash_keys[4]);
	}
	hash = mix(hash,
		   tuple->source | (__u32)tuple->destination << 16 | (__u64)tuple->protocol << 32,
		   hash_keys[1]);
	/* The multiplication leaves the best bits on top. */
	hash = hash * hash_keys[2] >> 32;
	return hash ? hash : 1;
}

#endif

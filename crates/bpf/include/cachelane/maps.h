/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Maps whose keys are numbers, in a line each. */
#ifndef CACHELANE_MAPS_H
#define CACHELANE_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* So many entries of a map that the process makes larger before it is loaded. */
#define SET_AT_LOAD 1

/* The kernel begins the values of an array at a page if it can be mapped, and else in the middle of
 * a cache line. */
#define CACHE_LINES BPF_F_MMAPABLE

#define MAP(name, kind, entries, value_type, flags)                                                \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_##kind);                                                 \
		__uint(map_flags, flags);                                                          \
		__uint(max_entries, entries);                                                      \
		__type(key, __u32);                                                                \
		__type(value, value_type);                                                         \
	} name SEC(".maps")

#define ARRAY(name, entries, value_type)	 MAP(name, ARRAY, entries, value_type, 0)
#define ALIGNED_ARRAY(name, entries, value_type) MAP(name, ARRAY, entries, value_type, CACHE_LINES)
#define PER_CPU_ARRAY(name, entries, value_type) MAP(name, PERCPU_ARRAY, entries, value_type, 0)

#endif

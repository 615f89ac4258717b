/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * mimalloc under the patterns of patterns.h: blocks of the frames' size, allocated and freed.
 *
 *   mimalloc CPU,CPU...
 */
#include "peer.h"

#include <mimalloc.h>

#define BLOCK_SIZE 2048
#define BATCH	   32

static inline bool thread_enter(void)
{
	return true;
}

static inline void thread_leave(void)
{
}

static inline void *get_one(void)
{
	return mi_malloc(BLOCK_SIZE);
}

static inline void put_one(void *object)
{
	mi_free(object);
}

static inline bool get_many(void **objects)
{
	for (int i = 0; i < BATCH; i++) {
		objects[i] = mi_malloc(BLOCK_SIZE);
		if (!objects[i])
			abort();
	}
	return true;
}

static inline void put_many(void **objects)
{
	for (int i = 0; i < BATCH; i++)
		mi_free(objects[i]);
}

#include "spsc.h"

#include "patterns.h"

int main(int argc, char **argv)
{
	if (argc != 2 || !(run.cpu_count = parse_cpus(argv[1], run.cpus))) {
		fprintf(stderr, "usage: %s CPU,CPU...\n", argv[0]);
		return 2;
	}
	return serve(measure);
}

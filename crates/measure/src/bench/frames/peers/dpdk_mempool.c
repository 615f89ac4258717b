/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * DPDK's mempool under the patterns of patterns.h.
 *
 *   dpdk_mempool HANDLER OBJECTS CPU,CPU...
 *
 * HANDLER is ring_mp_mc (the default of DPDK), stack or lf_stack. Objects of 2048 bytes, 256 of
 * them cached by each thread, which are registered with the EAL so that they have caches. There
 * are no huge pages: the pool's objects are not touched, only its ring and its caches are.
 *
 * Objects pass between threads by rte_ring, or, built with -DSPSC, by a ring that is built as the
 * one on the Rust side is: what differs then is the pools alone.
 */
#include "peer.h"

#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_mempool.h>
#include <rte_ring.h>

#define OBJECT_SIZE 2048
#define CACHE	    256
#define BATCH	    32

static struct rte_mempool *pool;

static inline bool thread_enter(void)
{
	return rte_thread_register() == 0;
}

static inline void thread_leave(void)
{
	/* The next thread of this number would inherit the cache; ours gives its frames back. */
	rte_mempool_cache_flush(NULL, pool);
	rte_thread_unregister();
}

static inline void *get_one(void)
{
	void *object;

	return rte_mempool_get(pool, &object) == 0 ? object : NULL;
}

static inline void put_one(void *object)
{
	rte_mempool_put(pool, object);
}

static inline bool get_many(void **objects)
{
	return rte_mempool_get_bulk(pool, objects, BATCH) == 0;
}

static inline void put_many(void **objects)
{
	rte_mempool_put_bulk(pool, objects, BATCH);
}

#ifdef SPSC
#include "spsc.h"
#else
struct ring {
	struct rte_ring ring;
};

static struct ring *ring_make(unsigned size)
{
	static unsigned number;
	char name[32];

	snprintf(name, sizeof(name), "pass-%u", number++);
	return (struct ring *)rte_ring_create(name, size, SOCKET_ID_ANY,
					      RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ);
}

static void ring_free(struct ring *ring)
{
	rte_ring_free(&ring->ring);
}

static inline bool ring_push(struct ring *ring, void **objects)
{
	return rte_ring_sp_enqueue_bulk(&ring->ring, objects, BATCH, NULL) != 0;
}

static inline bool ring_pop(struct ring *ring, void **objects)
{
	return rte_ring_sc_dequeue_bulk(&ring->ring, objects, BATCH, NULL) != 0;
}
#endif

#include "patterns.h"

static void give_up(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, rte_strerror(rte_errno));
	exit(1);
}

/* The EAL makes a folder for files that it is told not to write, and leaves it. */
static void remove_runtime_dir(void)
{
	char path[256];

	snprintf(path, sizeof(path), "%s", rte_eal_get_runtime_dir());
	if (!rmdir(path)) {
		/* The folder of all prefixes; others' files keep it. */
		*strrchr(path, '/') = '\0';
		rmdir(path);
	}
}

int main(int argc, char **argv)
{
	char cpu[16], prefix[64],
		*eal[] = {argv[0],
			  "--no-huge",
			  "--no-pci",
			  "--no-shconf",
			  "--no-telemetry",
			  "--iova-mode=va",
			  "-m",
			  "512",
			  "--log-level=error",
			  "--main-lcore",
			  "0",
			  "--lcores",
			  cpu,
			  "--file-prefix",
			  prefix,
			  NULL};
	long objects;

	if (argc != 4 || (objects = atol(argv[2])) < 1 ||
	    !(run.cpu_count = parse_cpus(argv[3], run.cpus))) {
		fprintf(stderr, "usage: %s HANDLER OBJECTS CPU,CPU...\n", argv[0]);
		return 2;
	}
	/* The main thread only waits; it is lcore 0, on the first of the CPUs. */
	snprintf(cpu, sizeof(cpu), "0@%d", run.cpus[0]);
	snprintf(prefix, sizeof(prefix), "cachelane-bench-%d", (int)getpid());
	if (rte_eal_init((int)(sizeof(eal) / sizeof(eal[0])) - 1, eal) < 0)
		give_up("rte_eal_init");
	remove_runtime_dir();
	pool = rte_mempool_create_empty("pool", (unsigned)objects, OBJECT_SIZE, CACHE, 0,
					SOCKET_ID_ANY, 0);
	if (!pool)
		give_up("rte_mempool_create_empty");
	if (rte_mempool_set_ops_byname(pool, argv[1], NULL))
		give_up(argv[1]);
	if (rte_mempool_populate_default(pool) < 0)
		give_up("rte_mempool_populate_default");
	return serve(measure);
}

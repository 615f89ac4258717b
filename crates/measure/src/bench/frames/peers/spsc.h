/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A ring from one thread to one other, built as the one on the Rust side (rtrb) is.
 */
#ifndef SPSC_H
#define SPSC_H

#include <stdatomic.h>

/* Each side keeps what it last saw of the other's index. A slot holds a batch. */
struct ring {
	_Alignas(128) _Atomic uint32_t tail;
	uint32_t head_seen;
	_Alignas(128) _Atomic uint32_t head;
	uint32_t tail_seen;
	_Alignas(128) uint32_t slots;
	void *batches[][BATCH];
};

static struct ring *ring_make(unsigned objects)
{
	size_t bytes = sizeof(struct ring) + objects * sizeof(void *);
	struct ring *ring = aligned_alloc(128, (bytes + 127) / 128 * 128);

	if (ring) {
		memset(ring, 0, bytes);
		ring->slots = objects / BATCH;
	}
	return ring;
}

static void ring_free(struct ring *ring)
{
	free(ring);
}

static inline bool ring_push(struct ring *ring, void **objects)
{
	uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);

	if (tail - ring->head_seen == ring->slots) {
		ring->head_seen = atomic_load_explicit(&ring->head, memory_order_acquire);
		if (tail - ring->head_seen == ring->slots)
			return false;
	}
	memcpy(ring->batches[tail & (ring->slots - 1)], objects, BATCH * sizeof(void *));
	atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
	return true;
}

static inline bool ring_pop(struct ring *ring, void **objects)
{
	uint32_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

	if (ring->tail_seen == head) {
		ring->tail_seen = atomic_load_explicit(&ring->tail, memory_order_acquire);
		if (ring->tail_seen == head)
			return false;
	}
	memcpy(objects, ring->batches[head & (ring->slots - 1)], BATCH * sizeof(void *));
	atomic_store_explicit(&ring->head, head + 1, memory_order_release);
	return true;
}

#endif

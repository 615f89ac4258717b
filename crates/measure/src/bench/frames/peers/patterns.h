/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The patterns by which pools are measured, over what the program that includes this defines:
 *
 *   thread_enter, thread_leave        around a thread's work; enter returns false if it cannot
 *   get_one, put_one                  one object; NULL if there is none
 *   get_many, put_many                BATCH objects, which it says; get all or none
 *   struct ring, ring_make, ring_free, ring_push, ring_pop
 *                                     one thread to one other, BATCH objects or none at a time
 *
 * bench/frames/patterns.rs is the same in Rust, with the same batches, rings, waits and looks at
 * the clock: once in BLOCK objects. What is reported is wall time over the objects that were got
 * and put by all threads together, from when all are ready to when the last has ended.
 */
#ifndef PATTERNS_H
#define PATTERNS_H

#include <pthread.h>
#include <stdatomic.h>

#define BLOCK	    1024
#define ALIEN_RING  1024
#define ALL_RING    128
#define MAX_THREADS 128

struct worker {
	int number;
	bool failed;
	uint64_t count;
	uint64_t ended;
	pthread_t thread;
} __attribute__((aligned(128)));

static struct {
	uint64_t (*pattern)(int number);
	int threads;
	uint64_t ns;
	uint64_t started;
	/* Set when all are ready, so that nobody's start is another's time. */
	pthread_barrier_t ready;
	/* Senders that will send no more. */
	_Atomic int ended;
	struct ring *rings[MAX_THREADS * MAX_THREADS];
	int cpus[MAX_CPUS];
	int cpu_count;
	struct worker workers[MAX_THREADS];
} run;

/* The compiler must take it that the object is looked at, as Rust's black_box does. */
static inline void use(void *object)
{
	__asm__ volatile("" : : "r"(object) : "memory");
}

static inline bool over(void)
{
	return now_ns() >= run.started + run.ns;
}

/* Each thread gets and puts, one at a time. */
static uint64_t single(int number)
{
	uint64_t count = 0;
	unsigned turns = 0;

	(void)number;
	do {
		for (int i = 0; i < BLOCK; i++) {
			void *object = get_one();

			if (!object) {
				wait_turn(&turns);
				continue;
			}
			use(object);
			put_one(object);
			count++;
		}
	} while (!over());
	return count;
}

/* Each thread gets and puts, a batch at a time. */
static uint64_t bulk(int number)
{
	void *objects[BATCH];
	uint64_t count = 0;
	unsigned turns = 0;

	(void)number;
	do {
		for (int i = 0; i < BLOCK / BATCH; i++) {
			if (!get_many(objects)) {
				wait_turn(&turns);
				continue;
			}
			use(objects);
			put_many(objects);
			count += BATCH;
		}
	} while (!over());
	return count;
}

static void push(struct ring *ring, void **objects)
{
	unsigned turns = 0;

	while (!ring_push(ring, objects))
		wait_turn(&turns);
}

/* Has `done` see to what comes out of a ring, until the senders have ended and it is empty; how
 * many objects. Inlined, so that `done` costs no call. */
static inline __attribute__((always_inline)) uint64_t receive(struct ring *ring,
							      void (*done)(void **))
{
	void *objects[BATCH];
	uint64_t count = 0;
	unsigned turns = 0;

	for (;;) {
		/* Asked before the look into the ring: what was sent before is seen there. */
		bool last = atomic_load(&run.ended) == run.threads / 2;

		if (ring_pop(ring, objects)) {
			done(objects);
			count += BATCH;
		} else if (last) {
			return count;
		} else {
			wait_turn(&turns);
		}
	}
}

/* What an even thread gets, the odd one after it is done with. Inlined, as above. */
static inline __attribute__((always_inline)) uint64_t pairs(int number, bool (*get)(void **),
							    void (*done)(void **))
{
	struct ring *ring = run.rings[number / 2];
	void *objects[BATCH] = {0};
	unsigned turns = 0;

	if (number % 2)
		return receive(ring, done);
	do {
		for (int i = 0; i < BLOCK / BATCH; i++) {
			while (!get(objects))
				wait_turn(&turns);
			push(ring, objects);
		}
	} while (!over());
	atomic_fetch_add(&run.ended, 1);
	return 0;
}

/* What one gets, the other puts. */
static uint64_t alien(int number)
{
	return pairs(number, get_many, put_many);
}

static inline bool get_same(void **objects)
{
	(void)objects;
	return true;
}

static inline void use_many(void **objects)
{
	use(objects);
}

/* The passing of `alien` by itself: always the same objects, which nobody got. */
static uint64_t pass(int number)
{
	return pairs(number, get_same, use_many);
}

/* Puts what has come from any other thread; how many objects. */
static uint64_t all_receive(int number)
{
	void *objects[BATCH];
	uint64_t count = 0;

	for (int from = 0; from < run.threads; from++) {
		if (from == number || !ring_pop(run.rings[from * run.threads + number], objects))
			continue;
		put_many(objects);
		count += BATCH;
	}
	return count;
}

/* Each thread gets, and sends to every other thread in turn, which puts. */
static uint64_t all(int number)
{
	int threads = run.threads, to = (number + 1) % threads;
	void *objects[BATCH];
	bool waiting = false;
	uint64_t count = 0;
	unsigned turns = 0;

	do {
		for (int i = 0; i < BLOCK / BATCH; i++) {
			uint64_t received;
			bool sent = false;

			if (!waiting)
				waiting = get_many(objects);
			if (waiting && ring_push(run.rings[number * threads + to], objects)) {
				waiting = false;
				sent = true;
				to = (to + 1) % threads;
				if (to == number)
					to = (to + 1) % threads;
			}
			received = all_receive(number);
			count += received;
			if (!sent && !received)
				wait_turn(&turns);
		}
	} while (!over());
	if (waiting)
		put_many(objects);
	atomic_fetch_add(&run.ended, 1);
	for (;;) {
		bool last = atomic_load(&run.ended) == threads;
		uint64_t received = all_receive(number);

		count += received;
		if (!received && last)
			return count;
		if (!received)
			wait_turn(&turns);
	}
}

static void *work(void *arg)
{
	struct worker *worker = arg;

	pin(run.cpus[worker->number % run.cpu_count]);
	worker->failed = !thread_enter();
	pthread_barrier_wait(&run.ready);
	if (worker->number == 0)
		run.started = now_ns();
	/* No thread begins before all are ready and the time is known. */
	pthread_barrier_wait(&run.ready);
	for (int i = 0; i < run.threads; i++)
		if (run.workers[i].failed)
			goto out;
	worker->count = run.pattern(worker->number);
	worker->ended = now_ns();
out:
	pthread_barrier_wait(&run.ready);
	if (!worker->failed)
		thread_leave();
	return NULL;
}

static bool make_rings(int count, unsigned size)
{
	for (int i = 0; i < count; i++) {
		run.rings[i] = ring_make(size);
		if (!run.rings[i])
			return false;
	}
	return true;
}

static void free_rings(void)
{
	for (int i = 0; i < MAX_THREADS * MAX_THREADS; i++) {
		if (run.rings[i])
			ring_free(run.rings[i]);
		run.rings[i] = NULL;
	}
}

static const char *run_threads(int threads, long ms, struct result *result)
{
	uint64_t ended = 0, count = 0;
	bool failed = false;

	run.threads = threads;
	run.ns = (uint64_t)ms * 1000000u;
	atomic_store(&run.ended, 0);
	pthread_barrier_init(&run.ready, NULL, (unsigned)threads);
	for (int i = 0; i < threads; i++) {
		run.workers[i] = (struct worker){.number = i};
		if (pthread_create(&run.workers[i].thread, NULL, work, &run.workers[i])) {
			fputs("cannot start a thread\n", stderr);
			exit(1);
		}
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(run.workers[i].thread, NULL);
		failed |= run.workers[i].failed;
		count += run.workers[i].count;
		if (run.workers[i].ended > ended)
			ended = run.workers[i].ended;
	}
	pthread_barrier_destroy(&run.ready);
	if (failed)
		return "the library takes no more threads";
	if (!count)
		return "nothing was done";
	result->count = count;
	result->ns = (double)(ended - run.started) / (double)count;
	return NULL;
}

static const char *measure(const char *pattern, int threads, long ms, struct result *result)
{
	static const struct {
		const char *name;
		uint64_t (*pattern)(int number);
		/* Rings between pairs, or between all. */
		int pairs, all;
	} patterns[] = {
		{"single", single, 0, 0}, {"bulk32", bulk, 0, 0}, {"alien", alien, 1, 0},
		{"pass", pass, 1, 0},	  {"all", all, 0, 1},
	};
	const char *why = NULL;

	if (threads < 1 || threads > MAX_THREADS || ms < 1)
		return "threads or time out of range";
	for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
		int rings = 0;
		unsigned size = ALIEN_RING;

		if (strcmp(pattern, patterns[i].name))
			continue;
		if (patterns[i].pairs && threads % 2)
			return "this pattern needs pairs of threads";
		if (patterns[i].pairs)
			rings = threads / 2;
		if (patterns[i].all) {
			rings = threads * threads;
			size = ALL_RING;
		}
		run.pattern = patterns[i].pattern;
		if (!make_rings(rings, size))
			why = "no memory for rings";
		if (!why)
			why = run_threads(threads, ms, result);
		free_rings();
		return why;
	}
	return "no such pattern";
}

#endif

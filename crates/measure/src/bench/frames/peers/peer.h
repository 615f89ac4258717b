/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What every peer program of `cachelane bench frames` shares: it stays, reads requests from
 * standard input, and answers each with one line on standard output.
 *
 *   at its start        ready
 *   run PATTERN N MS    NANOSECONDS COUNT      per object or packet, and how many there were
 *   anything else       error WHY
 *
 * It ends at the end of its input. Why it cannot start is the last line on standard error.
 */
#ifndef PEER_H
#define PEER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CPUS 64

struct result {
	double ns;
	uint64_t count;
};

static inline void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

/* Measures; NULL, or why it cannot. */
typedef const char *(*measure_fn)(const char *pattern, int threads, long ms, struct result *);

static inline uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}

/* One turn of waiting for another thread; bench/worker.rs does the same. */
static inline void wait_turn(unsigned *turns)
{
	if (++*turns < 256) {
		relax();
		return;
	}
	*turns = 0;
	sched_yield();
}

static inline void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		fail("sched_setaffinity");
}

/* Reads all bytes, as `cachelane borrow --worker` does. */
static inline uint64_t sum(const unsigned char *bytes, uint32_t length)
{
	uint64_t sum = 0, word;

	for (; length >= 8; bytes += 8, length -= 8) {
		memcpy(&word, bytes, 8);
		sum += word;
	}
	while (length--)
		sum += *bytes++;
	return sum;
}

/* CPU numbers, separated by commas; how many. */
static inline int parse_cpus(const char *text, int *cpus)
{
	int count = 0;
	char *end;

	for (; count < MAX_CPUS; text = end + 1) {
		long cpu = strtol(text, &end, 10);

		if (end == text || cpu < 0 || cpu >= CPU_SETSIZE || (*end && *end != ','))
			return 0;
		cpus[count++] = (int)cpu;
		if (!*end)
			return count;
	}
	return 0;
}

static inline int serve(measure_fn measure)
{
	char line[128], pattern[32];

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		struct result result = {0};
		const char *why = "not a request";
		int threads;
		long ms;

		if (sscanf(line, "run %31s %d %ld", pattern, &threads, &ms) == 3)
			why = measure(pattern, threads, ms, &result);
		if (why)
			printf("error %s\n", why);
		else
			printf("%.6f %llu\n", result.ns, (unsigned long long)result.count);
	}
	return 0;
}

#endif

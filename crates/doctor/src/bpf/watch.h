/* SPDX-License-Identifier: GPL-2.0-only */
/* What the programs that watch traffic share with the process. The Rust types are generated. */
#ifndef CACHELANE_WATCH_H
#define CACHELANE_WATCH_H

enum fixed {
	/* The most CPUs that there can be; as many as lanes knows. */
	CPUS_MAX = 1024,
	/* In place of a lane: the CPU is in none. */
	NO_LANE = 0xffff,
	/* Of so many events a program looks at one. */
	EVERY = 8,
};

/* What is counted; the index of its counts. */
enum event {
	EVENT_RECEIVE, /* a socket's consumer receives */
	EVENT_CONSUME, /* a buffer is freed whose packet was delivered or sent */
	EVENT_DROP,    /* a buffer is freed whose packet was dropped */
	EVENTS,
};

/* One CPU's counts of one kind of event. */
struct counts {
	__u64 skip;	  /* events until one is looked at */
	__u64 looked;	  /* events looked at of which both CPUs are known */
	__u64 other_lane; /* of them those whose CPUs are in two lanes */
	__u64 local;	  /* of these the receives of what was sent on this host, by loopback */
};
_Static_assert(sizeof(struct counts) == 32, "struct counts has padding");

#endif

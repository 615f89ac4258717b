/* SPDX-License-Identifier: GPL-2.0-only */
/* What the programs and the process that feeds them share. The Rust types are generated. */
#ifndef CACHELANE_STEER_H
#define CACHELANE_STEER_H

enum fixed {
	/* The most CPUs that there can be; as many as lanes knows. */
	CPUS_MAX = 1024,
	/* Words of a set. A flow's word is in the set that its hash says, at any place. */
	WAYS = 8,
	/* In place of a thread's address: it is waited for, and has not run yet. */
	TASK_UNKNOWN = 1,
};

/* Not a CPU: the kernel path. */
#define KERNEL_PATH 0xffffffff

/* Why a packet took the kernel path; the index of its counter. The process names them
 * (counters.rs).
 */
enum reason {
	REASON_OTHER,	 /* neither IPv4 nor IPv6 */
	REASON_SHORT,	 /* a header is cut short or makes no sense */
	REASON_FRAGMENT, /* ports of an IP fragment are not known */
	REASON_PROTOCOL, /* neither TCP nor UDP, or below IPv6 extension headers: tunnels, ICMP */
	REASON_UNKNOWN,	 /* no local socket has received of this flow, or others have its set */
	REASON_TARGET,	 /* its consumer's CPU is none of the targets */
	REASON_ORDER,	 /* may not leave the kernel path yet */
	REASON_HERE,	 /* its consumer's CPU is the one that it arrived on */
	REASON_UNSENT, /* the driver leaves no room for the queue's number, or the CPU has no queue
			*/
	REASON_QUEUE,  /* it came by a queue that was not there at the start */
	REASON_BUSY,   /* its consumer's CPU does not take its packets, or has too many waiting */
	REASON_LEASE,  /* the process has not said for too long that it looks after the host */
	REASONS,
};

/* Records of flows; half a cache line. */
struct record_set {
	__u32 words[WAYS];
};
_Static_assert(sizeof(struct record_set) == 32, "struct record_set is half a cache line");

/* Which CPU flows' packets go to, per queue; a cache line. A flow that is not there takes the
 * kernel path. */
struct flow_set {
	__u32 words[WAYS];
	__u32 tails[WAYS]; /* its last packet's count there */
};
_Static_assert(sizeof(struct flow_set) == 64, "struct flow_set is a cache line");

/* Flows of one queue that may have a packet in GRO; a cache line, for it is written by the queue.
 *
 * Who is in a NAPI poll of the queue writes `bits` and `in`. When a poll is told of as over,
 * another CPU may be in the next already: so that only says which poll it was, in `done`, and who
 * comes next clears the bits, if they are of that poll. If `done` comes too late they stay for a
 * poll longer. */
struct passed {
	__u64 bits[4]; /* by hash: a packet took the kernel path */
	__u32 in;      /* the last poll in which one did */
	__u32 done;    /* a poll that has left nothing in GRO */
	__u32 reserved[6];
};
_Static_assert(sizeof(struct passed) == 64, "struct passed is a cache line");

/* Packets of one queue that were sent to one CPU, and what the queue has seen of it; a cache line,
 * for it is written by the queue. Times are in ticks.
 *
 * What the CPU's queue had no room for is subtracted again as soon as it is known, which is before
 * the poll is over. So no packet has a lower count than its place among those that the CPU takes.
 * If losses were added to what it has taken, those after a packet would count as that packet. */
struct sent {
	__u32 packets; /* modulo 2^32 */
	__u32 seen;    /* of them, those that the CPU had taken at the last look */
	__u64 moved;   /* the last look at which it had taken some, or had all */
	__u64 stalled; /* the last look at which it had taken none for too long; 0: never */
	__u64 open;    /* when a look last found that packets may be sent there; else 0 */
	__u32 worked;  /* what the CPU had taken of all queues at the last look */
	__u32 reserved[7];
};
_Static_assert(sizeof(struct sent) == 64, "struct sent is a cache line");

/* The same at the other end: written by that CPU. */
struct taken {
	__u32 packets; /* taken from the CPU's queue, modulo 2^32 */
	__u32 reserved[15];
};
_Static_assert(sizeof(struct taken) == 64, "struct taken is a cache line");

/* A CPU that flows can be sent to. */
struct target {
	__u64 task;   /* its cpumap thread, from when it has run until it has nothing: a pointer */
	__u32 active; /* not 0: flows may be sent there */
	__u32 lane;   /* CPUs of the same number share a cache */
};
_Static_assert(sizeof(struct target) == 16, "struct target has padding");

/* Read by all programs, written by the process. */
struct settings {
	__u32 llc_affinity; /* not 0: a record is rewritten only when the consumer left the lane */
	__u32 entries_id;   /* the cpumap, to know its tracepoint's events */
	__u64 renewed;	    /* the tick at which the process last had looked after the host */
};
_Static_assert(sizeof(struct settings) == 16, "struct settings has padding");

/* When it began to do so. */
struct ago {
	__u64 ticks; /* before now */
};

/* The NAPI poll that a CPU is in. */
struct poll {
	__u32 queue;  /* of the packet that was sent to a CPU last */
	__u32 passed; /* one more than the queue of the flow that last took the kernel path; 0: none
		       */
	__u32 number; /* of the poll, modulo 2^22 */
	__u32 reserved;
};

/* One CPU's counts. */
struct counts {
	__u64 steered;	  /* packets sent to a CPU: their consumer's, or where their flow is held */
	__u64 moves;	  /* of them those that went to another CPU than the one before */
	__u64 held;	  /* packets that went where the one before did, to keep the order */
	__u64 kernel[16]; /* by reason; a power of two, for the verifier */
	__u64 receives;	  /* receives and sends that the record side looked at */
	__u64 unchanged;  /* record was right */
	__u64 same_lane;  /* record left alone: the consumer moved inside its lane */
	__u64 written;	  /* records written */
	__u64 collisions; /* of them those that were put into a set where another flow's was */
	__u64 evicted;	  /* of these those that replaced one, for the set was full */
	__u64 overflows;  /* packets lost because a CPU's queue was full */
	__u64 stalls;	  /* times that a CPU was seen to take nothing */
	__u64 released;	  /* packets that left such a CPU before what their flow had there */
};

/* What a CPU has for itself. */
struct own {
	struct poll poll;
	struct counts counts;
};

#endif

/* SPDX-License-Identifier: GPL-2.0-only */
/* What the verdict program and its loader share. The Rust types are generated from these. */
#ifndef CACHELANE_RELAY_SOCKMAP_H
#define CACHELANE_RELAY_SOCKMAP_H

/* One direction of one connection, keyed by its source socket's cookie. The loader writes it
 * once, before the socket joins `sources`; from then on the program alone writes it. */
struct flow {
	__u32 slot;	  /* index of the target in `targets`, and of this flow's `progress` */
	__u32 next;	  /* sequence number of the source's next byte; set by the first packet */
	__u64 base;	  /* the target's bytes_acked if all sent before the hand-over is acked */
	__u64 budget;	  /* bytes that may be on their way to the target's peer, unacked */
	__u64 redirected; /* bytes sent on in the kernel */
	__u64 passed;	  /* bytes left to user space to forward */
	__u64 held;	  /* times the budget was used up */
	__u64 average;	  /* moving average of the packets' sizes, bytes */
	__u64 trimmed;	  /* bytes cut off because they had come before */
	__u64 lost;	  /* packets dropped that user space must reset the connection for */
};

/* What user space has done of its part. Only the loader writes it. */
struct progress {
	__u64 forwarded; /* bytes of `passed` that user space wrote to the target */
	__u64 asleep;	 /* not 0: user space waits for an event, which only a passed packet is */
};

_Static_assert(sizeof(struct flow) == 72, "the loader writes this layout");
_Static_assert(sizeof(struct progress) == 16, "the loader writes this layout");

#endif

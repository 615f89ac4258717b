/* SPDX-License-Identifier: GPL-2.0-only */
/* What the program that makes frames and the process that runs it share. The Rust types are
 * generated. */
#ifndef CACHELANE_LIVE_H
#define CACHELANE_LIVE_H

enum live_size {
	/* The words of eight bytes that are written into each frame anew: its headers, and a probe.
	 */
	HEAD_WORDS = 12,
	/* Bytes of a probe, behind the UDP header. */
	PROBE = 22,
	/* Parts of a nanosecond in the time between two frames. */
	GAP_PARTS = 256,
};

/* Where the next frame goes on. Only the thread that runs the program has it. */
struct live_state {
	__u64 number;	   /* of the next probe */
	__u64 nanoseconds; /* when this batch of frames was begun */
	__u64 due;	   /* when the next frame is, in nanoseconds, where there is a rate */
	__u32 due_parts;   /* and so many GAP_PARTS */
	__u32 left;	   /* frames of this batch */
	__u16 source;	   /* the next frame's UDP ports */
	__u16 target;
	__u32 padding;
};
_Static_assert(sizeof(struct live_state) == 40, "struct live_state has padding");

/* What became of the frames. */
struct live_counts {
	__u64 sent;    /* the device took it */
	__u64 dropped; /* the device did not */
};
_Static_assert(sizeof(struct live_counts) == 16, "struct live_counts has padding");

#endif

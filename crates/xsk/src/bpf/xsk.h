/* SPDX-License-Identifier: GPL-2.0-only */
/* What the program and the process that attaches it share. The Rust types are generated. */
#ifndef CACHELANE_XSK_H
#define CACHELANE_XSK_H

/* What becomes of a packet. */
struct counts {
	__u64 redirected; /* sent to the socket of its queue */
	__u64 not_chosen; /* to the kernel: the filter is for others */
	__u64 no_socket;  /* to the kernel: chosen, but its queue has no socket */
	__u64 unattended; /* to the kernel: chosen, but nobody has looked at the socket lately */
	__u64 malformed;  /* to the kernel: a header is cut short or makes no sense */
	__u64 fragment;	  /* to the kernel: an IP fragment, of which ports are not known */
};
_Static_assert(sizeof(struct counts) == 48, "struct counts has padding");

/* In front of a packet that goes to a socket. */
struct stamp {
	__u64 time;   /* when it came: nanoseconds of CLOCK_TAI */
	__u64 sealed; /* the time, exclusive or the seal */
};
_Static_assert(sizeof(struct stamp) == 16, "as crates/xsk/src/stamp.rs reads it");

#endif

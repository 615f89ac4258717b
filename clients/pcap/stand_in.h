/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the files of the stand-in share: handles, and calls of the installed libpcap. */
#ifndef CACHELANE_PCAP_STAND_IN_H
#define CACHELANE_PCAP_STAND_IN_H

#include "plugin.h"

#include <stdbool.h>

/* Handles of lenders that a program can have at a time. */
#define HANDLES 256

/* A packet that was asked for alone. */
struct one {
	struct pcap_pkthdr header;
	const u_char *bytes;
};

/* What pcap.h leaves open: a handle of ours. */
struct pcap {
	int used;
	bool active, nonblock;
	pcap_t *dead;
	char *device;
	void *private;
	int snaplen, timeout, precision, linktype, selectable;
	int (*activate)(pcap_t *p);
	struct pcap_plugin_ops ops;
	struct bpf_program filter;
	/* Set by signal handlers and other threads. */
	int breaks;
	/* Valid until the next call, as the packet is. */
	struct one one;
};

extern struct pcap handles[HANDLES];

static inline bool is_ours(const pcap_t *p)
{
	return p >= handles && p < handles + HANDLES;
}

/* The handle that the installed libpcap knows. */
static inline pcap_t *theirs(pcap_t *p)
{
	return is_ours(p) ? p->dead : p;
}

/* Sets a handle's error, and returns the result. */
int fail(pcap_t *p, int result, const char *why);

/* A handle of the installed libpcap for this one, as it is set. */
pcap_t *open_dead(const pcap_t *p);

/* The list that pcap_findalldevs is making. */
struct pcap_if_list {
	pcap_if_t **end;
};

/* A function of the installed libpcap, or NULL. Where there is no libpcap, it ends the program. */
void *installed(const char *name);

/* A call of it; `missing` where it has no such function. */
#define REAL(name, missing, ...)                                                                   \
	({                                                                                         \
		static __typeof__(&name) call;                                                     \
		if (!call)                                                                         \
			call = (__typeof__(&name))installed(#name);                                \
		call ? call(__VA_ARGS__) : (missing);                                              \
	})
#define REAL_VOID(name, ...) REAL(name, (void)0, __VA_ARGS__)

#endif /* CACHELANE_PCAP_STAND_IN_H */

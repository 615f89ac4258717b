/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Stands in front of the libpcap that is installed, for programs that are linked with it: loaded
 * before it (LD_PRELOAD), or as libpcap.so.0.8 in a folder of LD_LIBRARY_PATH.
 *
 * It has libpcap's functions. What concerns a handle of a lender goes to the module in lender.c,
 * for which it is what a libpcap with a loader of modules is: it has the functions of plugin.h. All
 * else goes to the installed libpcap, which is looked for when it is needed.
 *
 * A handle of ours is an element of `handles`, by whose address it is known. With each is a handle
 * of the installed libpcap that reads nothing (pcap_open_dead): compilers of filters, dump files
 * and the like get that one.
 */
#include "lender.h"
#include "stand_in.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- What programs find: of a handle ---- */

#pragma GCC visibility push(default)

/* A handle for a lender's device; NULL with *is_lender if it has none. */
static pcap_t *create(const char *device, char *errbuf, int *is_lender)
{
	pcap_t *p = NULL;

	*is_lender = 0;
	if (device)
		p = pcap_plugin_entry.create(device, errbuf, is_lender);
	if (!p)
		return NULL;
	p->device = strdup(device);
	if (p->device)
		return p;
	snprintf(errbuf, PCAP_ERRBUF_SIZE, "no memory for a handle");
	pcap_close(p);
	return NULL;
}

pcap_t *pcap_create(const char *device, char *errbuf)
{
	int is_lender;
	pcap_t *p = create(device, errbuf, &is_lender);

	return is_lender ? p : REAL(pcap_create, NULL, device, errbuf);
}

int pcap_activate(pcap_t *p)
{
	pcap_t *dead;
	int result;

	if (!is_ours(p))
		return REAL(pcap_activate, PCAP_ERROR, p);
	if (p->active)
		return PCAP_ERROR_ACTIVATED;
	result = p->activate(p);
	if (result < 0)
		return result;
	/* One that knows what was set meanwhile. */
	dead = open_dead(p);
	if (!dead) {
		p->ops.cleanup(p);
		return fail(p, PCAP_ERROR, "no memory for a handle");
	}
	REAL_VOID(pcap_close, p->dead);
	p->dead = dead;
	p->active = true;
	p->ops.setnonblock(p, p->nonblock);
	lender_selects(p, 0);
	return result;
}

pcap_t *pcap_open_live(const char *device, int snaplen, int promisc, int to_ms, char *errbuf)
{
	int is_lender, result;
	pcap_t *p = create(device, errbuf, &is_lender);

	if (!is_lender)
		return REAL(pcap_open_live, NULL, device, snaplen, promisc, to_ms, errbuf);
	if (!p)
		return NULL;
	p->snaplen = snaplen;
	p->timeout = to_ms;
	result = pcap_activate(p);
	if (result >= 0)
		return p;
	snprintf(errbuf, PCAP_ERRBUF_SIZE, "%.100s: %.150s", device, pcap_geterr(p));
	pcap_close(p);
	return NULL;
}

void pcap_close(pcap_t *p)
{
	if (!is_ours(p)) {
		REAL_VOID(pcap_close, p);
		return;
	}
	if (p->active)
		p->ops.cleanup(p);
	if (p->dead)
		REAL_VOID(pcap_close, p->dead);
	free(p->private);
	free(p->device);
	__atomic_store_n(&p->used, 0, __ATOMIC_RELEASE);
}

/* What can be set before a handle is open. */
#define SETTER(name, type, statement)                                                              \
	int name(pcap_t *p, type value)                                                            \
	{                                                                                          \
		if (!is_ours(p))                                                                   \
			return REAL(name, PCAP_ERROR, p, value);                                   \
		if (p->active)                                                                     \
			return PCAP_ERROR_ACTIVATED;                                               \
		(void)value;                                                                       \
		statement;                                                                         \
		return 0;                                                                          \
	}
SETTER(pcap_set_snaplen, int, p->snaplen = value)
SETTER(pcap_set_timeout, int, p->timeout = value)
/* A lender decides what it receives, and how many loans wait. */
SETTER(pcap_set_promisc, int, )
SETTER(pcap_set_buffer_size, int, )
SETTER(pcap_set_immediate_mode, int, )
SETTER(pcap_set_protocol_linux, int, )
SETTER(pcap_set_rfmon, int, if (value) return PCAP_ERROR_RFMON_NOTSUP)
SETTER(pcap_set_tstamp_type, int,
       if (value != PCAP_TSTAMP_HOST) return PCAP_WARNING_TSTAMP_TYPE_NOTSUP)
SETTER(pcap_set_tstamp_precision, int,
       if (value != PCAP_TSTAMP_PRECISION_MICRO &&
	   value != PCAP_TSTAMP_PRECISION_NANO) return PCAP_ERROR_TSTAMP_PRECISION_NOTSUP;
       p->precision = value)

int pcap_can_set_rfmon(pcap_t *p)
{
	return is_ours(p) ? 0 : REAL(pcap_can_set_rfmon, PCAP_ERROR, p);
}

int pcap_list_tstamp_types(pcap_t *p, int **types)
{
	if (!is_ours(p))
		return REAL(pcap_list_tstamp_types, PCAP_ERROR, p, types);
	*types = malloc(sizeof(**types));
	if (!*types)
		return fail(p, PCAP_ERROR, "no memory");
	**types = PCAP_TSTAMP_HOST;
	return 1;
}

int pcap_get_tstamp_precision(pcap_t *p)
{
	return is_ours(p) ? p->precision : REAL(pcap_get_tstamp_precision, 0, p);
}

int pcap_snapshot(pcap_t *p)
{
	if (!is_ours(p))
		return REAL(pcap_snapshot, PCAP_ERROR, p);
	return p->active ? p->snaplen : PCAP_ERROR_NOT_ACTIVATED;
}

int pcap_dispatch(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	if (!is_ours(p))
		return REAL(pcap_dispatch, PCAP_ERROR, p, count, handler, user);
	return p->active ? p->ops.read(p, count, handler, user) : PCAP_ERROR_NOT_ACTIVATED;
}

int pcap_loop(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	int left = count, got;

	if (!is_ours(p))
		return REAL(pcap_loop, PCAP_ERROR, p, count, handler, user);
	do {
		got = pcap_dispatch(p, left, handler, user);
		if (got < 0)
			return got;
		left -= count > 0 ? got : 0;
	} while (count <= 0 || left > 0);
	return 0;
}

static void take_one(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
	struct one *one = (struct one *)user;

	one->header = *header;
	one->bytes = bytes;
}

const u_char *pcap_next(pcap_t *p, struct pcap_pkthdr *header)
{
	struct one one = {.bytes = NULL};

	if (!is_ours(p))
		return REAL(pcap_next, NULL, p, header);
	if (pcap_dispatch(p, 1, take_one, (u_char *)&one) == 1)
		*header = one.header;
	return one.bytes;
}

int pcap_next_ex(pcap_t *p, struct pcap_pkthdr **header, const u_char **bytes)
{
	int got;

	if (!is_ours(p))
		return REAL(pcap_next_ex, PCAP_ERROR, p, header, bytes);
	got = pcap_dispatch(p, 1, take_one, (u_char *)&p->one);
	if (got == 1) {
		*header = &p->one.header;
		*bytes = p->one.bytes;
	}
	return got;
}

void pcap_breakloop(pcap_t *p)
{
	if (!is_ours(p))
		REAL_VOID(pcap_breakloop, p);
	else if (p->active)
		p->ops.breakloop_func(p);
	else
		pcap_plugin_breakloop(p);
}

int pcap_setfilter(pcap_t *p, struct bpf_program *program)
{
	if (!is_ours(p))
		return REAL(pcap_setfilter, PCAP_ERROR, p, program);
	return p->active ? p->ops.setfilter(p, program) : PCAP_ERROR_NOT_ACTIVATED;
}

int pcap_setdirection(pcap_t *p, pcap_direction_t direction)
{
	if (!is_ours(p))
		return REAL(pcap_setdirection, PCAP_ERROR, p, direction);
	return p->active ? p->ops.setdirection(p, direction) : PCAP_ERROR_NOT_ACTIVATED;
}

int pcap_getnonblock(pcap_t *p, char *errbuf)
{
	if (!is_ours(p))
		return REAL(pcap_getnonblock, PCAP_ERROR, p, errbuf);
	if (p->active)
		return p->ops.getnonblock(p);
	snprintf(errbuf, PCAP_ERRBUF_SIZE, "that handle is not open yet");
	return PCAP_ERROR_NOT_ACTIVATED;
}

int pcap_setnonblock(pcap_t *p, int nonblock, char *errbuf)
{
	if (!is_ours(p))
		return REAL(pcap_setnonblock, PCAP_ERROR, p, nonblock, errbuf);
	/* Also of one that is opened later. */
	p->nonblock = nonblock;
	return p->active ? p->ops.setnonblock(p, nonblock) : 0;
}

/* Whoever asks for a descriptor waits by it. */
static int selectable(pcap_t *p)
{
	if (p->active)
		lender_selects(p, 1);
	return p->selectable;
}

int pcap_get_selectable_fd(pcap_t *p)
{
	return is_ours(p) ? selectable(p) : REAL(pcap_get_selectable_fd, -1, p);
}

int pcap_fileno(pcap_t *p)
{
	return is_ours(p) ? selectable(p) : REAL(pcap_fileno, -1, p);
}

const struct timeval *pcap_get_required_select_timeout(pcap_t *p)
{
	return is_ours(p) ? NULL : REAL(pcap_get_required_select_timeout, NULL, p);
}

int pcap_stats(pcap_t *p, struct pcap_stat *stats)
{
	if (!is_ours(p))
		return REAL(pcap_stats, PCAP_ERROR, p, stats);
	return p->active ? p->ops.stats(p, stats) : PCAP_ERROR_NOT_ACTIVATED;
}

int pcap_inject(pcap_t *p, const void *packet, size_t size)
{
	if (!is_ours(p))
		return REAL(pcap_inject, PCAP_ERROR, p, packet, size);
	return p->active ? p->ops.inject(p, packet, (int)size) : PCAP_ERROR_NOT_ACTIVATED;
}

int pcap_sendpacket(pcap_t *p, const u_char *packet, int size)
{
	if (!is_ours(p))
		return REAL(pcap_sendpacket, PCAP_ERROR, p, packet, size);
	return pcap_inject(p, packet, (size_t)size) < 0 ? PCAP_ERROR : 0;
}

/* ---- What programs find: of devices ---- */

int pcap_findalldevs(pcap_if_t **devices, char *errbuf)
{
	int result = REAL(pcap_findalldevs, PCAP_ERROR, devices, errbuf);
	struct pcap_if_list list = {.end = devices};

	if (result != 0)
		return result;
	while (*list.end)
		list.end = &(*list.end)->next;
	result = pcap_plugin_entry.findalldevs(&list, errbuf);
	if (result != 0) {
		pcap_freealldevs(*devices);
		*devices = NULL;
	}
	return result;
}

int pcap_lookupnet(const char *device, bpf_u_int32 *net, bpf_u_int32 *mask, char *errbuf)
{
	int is_lender = 0;
	pcap_t *p = device ? create(device, errbuf, &is_lender) : NULL;

	if (!is_lender)
		return REAL(pcap_lookupnet, PCAP_ERROR, device, net, mask, errbuf);
	if (p)
		pcap_close(p);
	/* It has none, like other devices that are no interface. */
	*net = *mask = 0;
	return 0;
}

#pragma GCC visibility pop

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Handles of lenders, as a capture module finds them: the functions of plugin.h. */
#include "stand_in.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pcap handles[HANDLES];

static char *error_of(pcap_t *p)
{
	return REAL(pcap_geterr, NULL, p->dead);
}

int fail(pcap_t *p, int result, const char *why)
{
	pcap_plugin_set_errbuf(p, "%s", why);
	return result;
}

void pcap_plugin_set_errbuf(pcap_t *p, const char *format, ...)
{
	char *errbuf = error_of(p);
	va_list values;

	if (!errbuf)
		return;
	va_start(values, format);
	vsnprintf(errbuf, PCAP_ERRBUF_SIZE, format, values);
	va_end(values);
}

pcap_t *open_dead(const pcap_t *p)
{
	return REAL(pcap_open_dead_with_tstamp_precision, NULL, p->linktype, p->snaplen,
		    (u_int)p->precision);
}

pcap_t *pcap_plugin_create_handle(char *errbuf, size_t private_size)
{
	pcap_t *p = handles;

	while (p < handles + HANDLES && __atomic_exchange_n(&p->used, 1, __ATOMIC_ACQUIRE))
		p++;
	if (p == handles + HANDLES) {
		snprintf(errbuf, PCAP_ERRBUF_SIZE, "no more than %d handles of lenders", HANDLES);
		return NULL;
	}
	memset(&p->active, 0, sizeof(*p) - offsetof(struct pcap, active));
	p->snaplen = PCAP_PLUGIN_SNAPLEN_MAX;
	p->precision = PCAP_TSTAMP_PRECISION_MICRO;
	p->linktype = DLT_EN10MB;
	p->selectable = -1;
	p->dead = open_dead(p);
	p->private = calloc(1, private_size);
	if (p->dead && p->private)
		return p;
	snprintf(errbuf, PCAP_ERRBUF_SIZE, "no memory for a handle");
	pcap_close(p);
	return NULL;
}

void *pcap_plugin_priv(pcap_t *p)
{
	return p->private;
}

void pcap_plugin_set_activate(pcap_t *p, int (*activate)(pcap_t *p))
{
	p->activate = activate;
}

/* What lenders' handles have is known here. */
int pcap_plugin_set_tstamp_type_list(pcap_t *p, const int *types, int count)
{
	(void)p;
	(void)types;
	(void)count;
	return 0;
}

int pcap_plugin_set_tstamp_precision_list(pcap_t *p, const int *precisions, int count)
{
	(void)p;
	(void)precisions;
	(void)count;
	return 0;
}

void pcap_plugin_set_ops(pcap_t *p, const struct pcap_plugin_ops *ops)
{
	p->ops = *ops;
}

void pcap_plugin_set_linktype(pcap_t *p, int linktype)
{
	p->linktype = linktype;
}

void pcap_plugin_set_snapshot(pcap_t *p, int snaplen)
{
	p->snaplen = snaplen;
}

void pcap_plugin_set_selectable_fd(pcap_t *p, int fd)
{
	p->selectable = fd;
}

const char *pcap_plugin_get_device(pcap_t *p)
{
	return p->device;
}

int pcap_plugin_get_snapshot(pcap_t *p)
{
	return p->snaplen;
}

int pcap_plugin_get_timeout(pcap_t *p)
{
	return p->timeout;
}

int pcap_plugin_get_tstamp_precision(pcap_t *p)
{
	return p->precision;
}

int pcap_plugin_check_break_loop(pcap_t *p)
{
	/* Acquire and release, so that what was done before the loop was broken is seen after. */
	return __atomic_load_n(&p->breaks, __ATOMIC_RELAXED) &&
	       __atomic_exchange_n(&p->breaks, 0, __ATOMIC_ACQ_REL);
}

void pcap_plugin_breakloop(pcap_t *p)
{
	__atomic_store_n(&p->breaks, 1, __ATOMIC_RELEASE);
}

int pcap_plugin_install_bpf(pcap_t *p, struct bpf_program *program)
{
	struct bpf_insn *copy;
	size_t size;

	if (!program)
		return fail(p, PCAP_ERROR, "no filter");
	if (!REAL(bpf_validate, 0, program->bf_insns, (int)program->bf_len))
		return fail(p, PCAP_ERROR, "that is no valid filter");
	size = program->bf_len * sizeof(*program->bf_insns);
	copy = malloc(size);
	if (!copy)
		return fail(p, PCAP_ERROR, "no memory for a filter");
	memcpy(copy, program->bf_insns, size);
	free(p->filter.bf_insns);
	p->filter.bf_insns = copy;
	p->filter.bf_len = program->bf_len;
	return 0;
}

struct bpf_insn *pcap_plugin_get_filter(pcap_t *p)
{
	return p->filter.bf_insns;
}

unsigned int pcap_plugin_filter(const struct bpf_insn *filter, const unsigned char *packet,
				unsigned int wire_length, unsigned int length)
{
	return REAL(bpf_filter, 0, filter, packet, wire_length, length);
}

void pcap_plugin_cleanup_live(pcap_t *p)
{
	free(p->filter.bf_insns);
	p->filter.bf_insns = NULL;
	p->selectable = -1;
}

pcap_if_t *pcap_plugin_add_dev(pcap_if_list_t *list, const char *name, unsigned int flags,
			       const char *description, char *errbuf)
{
	pcap_if_t *device = calloc(1, sizeof(*device));

	if (device) {
		device->name = strdup(name);
		device->description = strdup(description);
		device->flags = flags;
	}
	if (!device || !device->name || !device->description) {
		snprintf(errbuf, PCAP_ERRBUF_SIZE, "no memory for a list of devices");
		if (device) {
			free(device->name);
			free(device->description);
		}
		free(device);
		return NULL;
	}
	*list->end = device;
	list->end = &device->next;
	return device;
}

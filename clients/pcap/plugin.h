/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The interface of libpcap's loadable capture modules, ABI version 1, as libpcap's pull request
 * 1659 proposes it (2026; no released libpcap has it yet). A module is a file pcap-NAME.so with a
 * symbol `pcap_plugin_entry`; it knows handles by these functions alone.
 *
 * lender.c is written to it. For an installed libpcap without a loader, stand_in.c has these
 * functions. When libpcap installs a header of its own, that replaces this one.
 */
#ifndef CACHELANE_PCAP_PLUGIN_H
#define CACHELANE_PCAP_PLUGIN_H

#include <pcap/pcap.h>
#include <stddef.h>

struct pcap_if_list;
typedef struct pcap_if_list pcap_if_list_t;

#define PCAP_PLUGIN_ABI_VERSION 1

/* The most bytes of a packet that libpcap takes. */
#define PCAP_PLUGIN_SNAPLEN_MAX 262144

/* A module. `create` sets *is_ours to 0 and returns NULL for a device of somebody else. */
struct pcap_plugin {
	int abi_version;
	const char *name;
	int (*findalldevs)(pcap_if_list_t *list, char *errbuf);
	pcap_t *(*create)(const char *device, char *errbuf, int *is_ours);
};

/* What a module does with an open handle. NULL is libpcap's own way. */
struct pcap_plugin_ops {
	/* Hands over packets: up to so many, unless that is 0 or less. How many, or a PCAP_ERROR.
	 */
	int (*read)(pcap_t *p, int count, pcap_handler handler, u_char *user);
	int (*inject)(pcap_t *p, const void *packet, int size);
	int (*setfilter)(pcap_t *p, struct bpf_program *program);
	int (*setdirection)(pcap_t *p, pcap_direction_t direction);
	int (*set_datalink)(pcap_t *p, int linktype);
	int (*getnonblock)(pcap_t *p);
	int (*setnonblock)(pcap_t *p, int nonblock);
	int (*stats)(pcap_t *p, struct pcap_stat *stats);
	void (*cleanup)(pcap_t *p);
	/* From a signal handler, or from another thread. */
	void (*breakloop_func)(pcap_t *p);
};

/* A handle, with so many bytes of the module's own, which are zero. */
pcap_t *pcap_plugin_create_handle(char *errbuf, size_t private_size);
void *pcap_plugin_priv(pcap_t *p);

/* Before it is open. Lists are copied: 0, or -1. */
void pcap_plugin_set_activate(pcap_t *p, int (*activate)(pcap_t *p));
int pcap_plugin_set_tstamp_type_list(pcap_t *p, const int *types, int count);
int pcap_plugin_set_tstamp_precision_list(pcap_t *p, const int *precisions, int count);

/* While it is being opened. */
void pcap_plugin_set_ops(pcap_t *p, const struct pcap_plugin_ops *ops);
void pcap_plugin_set_linktype(pcap_t *p, int linktype);
void pcap_plugin_set_snapshot(pcap_t *p, int snaplen);
void pcap_plugin_set_selectable_fd(pcap_t *p, int fd);

/* What the program asked for. */
const char *pcap_plugin_get_device(pcap_t *p);
int pcap_plugin_get_snapshot(pcap_t *p);
/* Milliseconds that a read waits; 0 for as long as it takes. */
int pcap_plugin_get_timeout(pcap_t *p);
int pcap_plugin_get_tstamp_precision(pcap_t *p);

/* Whether the program wants to stop reading; asked once, it is forgotten. */
int pcap_plugin_check_break_loop(pcap_t *p);
/* Has that answer yes. */
void pcap_plugin_breakloop(pcap_t *p);

/* Copies a filter into the handle; there it is, or NULL; and whether it lets a packet through. */
int pcap_plugin_install_bpf(pcap_t *p, struct bpf_program *program);
struct bpf_insn *pcap_plugin_get_filter(pcap_t *p);
unsigned int pcap_plugin_filter(const struct bpf_insn *filter, const unsigned char *packet,
				unsigned int wire_length, unsigned int length);

void pcap_plugin_set_errbuf(pcap_t *p, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Frees what libpcap has of an open handle; at the end of `cleanup`. */
void pcap_plugin_cleanup_live(pcap_t *p);

/* Adds a device to a list; NULL, with errbuf, if that fails. */
pcap_if_t *pcap_plugin_add_dev(pcap_if_list_t *list, const char *name, unsigned int flags,
			       const char *description, char *errbuf);

#endif /* CACHELANE_PCAP_PLUGIN_H */

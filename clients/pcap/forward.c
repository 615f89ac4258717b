/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the stand-in leaves to the installed libpcap: all functions that have nothing to do with a
 * lender, and those that do for a handle what they do for any.
 */
#include "stand_in.h"

#include <pcap/namedb.h>

/* Some are old, but programs call them. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma GCC visibility push(default)

#define FORWARD(result, name, parameters, missing, ...)                                            \
	result name parameters                                                                     \
	{                                                                                          \
		return REAL(name, missing, __VA_ARGS__);                                           \
	}
/* Of a handle that is open. */
#define FORWARD_OPEN(name, parameters, ...)                                                        \
	int name parameters                                                                        \
	{                                                                                          \
		if (is_ours(p) && !p->active)                                                      \
			return PCAP_ERROR_NOT_ACTIVATED;                                           \
		return REAL(name, PCAP_ERROR, __VA_ARGS__);                                        \
	}
#define FORWARD_VOID(name, parameters, ...)                                                        \
	void name parameters                                                                       \
	{                                                                                          \
		REAL_VOID(name, __VA_ARGS__);                                                      \
	}

FORWARD_OPEN(pcap_bufsize, (pcap_t * p), theirs(p))
FORWARD_OPEN(pcap_datalink, (pcap_t * p), theirs(p))
FORWARD_OPEN(pcap_datalink_ext, (pcap_t * p), theirs(p))
FORWARD_OPEN(pcap_list_datalinks, (pcap_t * p, int **types), theirs(p), types)
FORWARD_OPEN(pcap_set_datalink, (pcap_t * p, int type), theirs(p), type)
FORWARD_OPEN(pcap_is_swapped, (pcap_t * p), theirs(p))
FORWARD_OPEN(pcap_major_version, (pcap_t * p), theirs(p))
FORWARD_OPEN(pcap_minor_version, (pcap_t * p), theirs(p))
FORWARD(FILE *, pcap_file, (pcap_t * p), NULL, theirs(p))
FORWARD(char *, pcap_geterr, (pcap_t * p), NULL, theirs(p))
FORWARD_VOID(pcap_perror, (pcap_t * p, const char *prefix), theirs(p), prefix)
FORWARD(int, pcap_compile,
	(pcap_t * p, struct bpf_program *program, const char *text, int optimize, bpf_u_int32 mask),
	PCAP_ERROR, theirs(p), program, text, optimize, mask)
FORWARD(pcap_dumper_t *, pcap_dump_open, (pcap_t * p, const char *path), NULL, theirs(p), path)
FORWARD(pcap_dumper_t *, pcap_dump_fopen, (pcap_t * p, FILE *file), NULL, theirs(p), file)
FORWARD(pcap_dumper_t *, pcap_dump_open_append, (pcap_t * p, const char *path), NULL, theirs(p),
	path)
FORWARD(int, pcap_init, (unsigned int options, char *errbuf), PCAP_ERROR, options, errbuf)
FORWARD(char *, pcap_lookupdev, (char *errbuf), NULL, errbuf)
FORWARD_VOID(pcap_freealldevs, (pcap_if_t * devices), devices)
FORWARD_VOID(pcap_free_datalinks, (int *types), types)
FORWARD_VOID(pcap_free_tstamp_types, (int *types), types)
FORWARD_VOID(pcap_freecode, (struct bpf_program * program), program)
FORWARD(pcap_t *, pcap_open_dead, (int type, int snaplen), NULL, type, snaplen)
FORWARD(pcap_t *, pcap_open_dead_with_tstamp_precision, (int type, int snaplen, u_int precision),
	NULL, type, snaplen, precision)
FORWARD(pcap_t *, pcap_open_offline, (const char *path, char *errbuf), NULL, path, errbuf)
FORWARD(pcap_t *, pcap_open_offline_with_tstamp_precision,
	(const char *path, u_int precision, char *errbuf), NULL, path, precision, errbuf)
FORWARD(pcap_t *, pcap_fopen_offline, (FILE * file, char *errbuf), NULL, file, errbuf)
FORWARD(pcap_t *, pcap_fopen_offline_with_tstamp_precision,
	(FILE * file, u_int precision, char *errbuf), NULL, file, precision, errbuf)
FORWARD_VOID(pcap_dump, (u_char * user, const struct pcap_pkthdr *header, const u_char *bytes),
	     user, header, bytes)
FORWARD_VOID(pcap_dump_close, (pcap_dumper_t * dumper), dumper)
FORWARD(FILE *, pcap_dump_file, (pcap_dumper_t * dumper), NULL, dumper)
FORWARD(int, pcap_dump_flush, (pcap_dumper_t * dumper), PCAP_ERROR, dumper)
FORWARD(long, pcap_dump_ftell, (pcap_dumper_t * dumper), -1, dumper)
FORWARD(int64_t, pcap_dump_ftell64, (pcap_dumper_t * dumper), -1, dumper)
FORWARD(int, pcap_offline_filter,
	(const struct bpf_program *program, const struct pcap_pkthdr *header, const u_char *bytes),
	0, program, header, bytes)
FORWARD(int, pcap_compile_nopcap,
	(int snaplen, int type, struct bpf_program *program, const char *text, int optimize,
	 bpf_u_int32 mask),
	PCAP_ERROR, snaplen, type, program, text, optimize, mask)
FORWARD(int, pcap_datalink_name_to_val, (const char *name), -1, name)
FORWARD(const char *, pcap_datalink_val_to_name, (int type), NULL, type)
FORWARD(const char *, pcap_datalink_val_to_description, (int type), NULL, type)
FORWARD(const char *, pcap_datalink_val_to_description_or_dlt, (int type), NULL, type)
FORWARD(int, pcap_tstamp_type_name_to_val, (const char *name), PCAP_ERROR, name)
FORWARD(const char *, pcap_tstamp_type_val_to_name, (int type), NULL, type)
FORWARD(const char *, pcap_tstamp_type_val_to_description, (int type), NULL, type)
FORWARD(const char *, pcap_statustostr, (int status), "", status)
FORWARD(const char *, pcap_strerror, (int number), "", number)
FORWARD(const char *, pcap_lib_version, (void), "", )
FORWARD(struct pcap_etherent *, pcap_next_etherent, (FILE * file), NULL, file)
FORWARD(u_char *, pcap_ether_hostton, (const char *name), NULL, name)
FORWARD(u_char *, pcap_ether_aton, (const char *text), NULL, text)
FORWARD(bpf_u_int32 **, pcap_nametoaddr, (const char *name), NULL, name)
FORWARD(struct addrinfo *, pcap_nametoaddrinfo, (const char *name), NULL, name)
FORWARD(bpf_u_int32, pcap_nametonetaddr, (const char *name), 0, name)
FORWARD(int, pcap_nametoport, (const char *name, int *port, int *protocol), 0, name, port, protocol)
FORWARD(int, pcap_nametoportrange, (const char *name, int *first, int *last, int *protocol), 0,
	name, first, last, protocol)
FORWARD(int, pcap_nametoproto, (const char *name), PROTO_UNDEF, name)
FORWARD(int, pcap_nametoeproto, (const char *name), PROTO_UNDEF, name)
FORWARD(int, pcap_nametollc, (const char *name), PROTO_UNDEF, name)
FORWARD(u_int, bpf_filter,
	(const struct bpf_insn *filter, const u_char *bytes, u_int wire_length, u_int length), 0,
	filter, bytes, wire_length, length)
FORWARD(int, bpf_validate, (const struct bpf_insn *filter, int length), 0, filter, length)
FORWARD(char *, bpf_image, (const struct bpf_insn *instruction, int number), NULL, instruction,
	number)
FORWARD_VOID(bpf_dump, (const struct bpf_program *program, int option), program, option)

#pragma GCC visibility pop

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What lenders are called as libpcap's devices, and which there are. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "devices.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define VARIABLE "CACHELANE_LEND"

bool is_lenders(const char *device)
{
	return !strncmp(device, PREFIX, strlen(PREFIX)) || !strcmp(device, "cachelane");
}

static int bad_device(pcap_t *p, const char *what, const char *expected)
{
	pcap_plugin_set_errbuf(p, "%.80s: %.60s (expected %s)", pcap_plugin_get_device(p), what,
			       expected);
	return PCAP_ERROR;
}

/* The number after the `=`, at least 1; 0 if it is none. */
static uint32_t number(const char *option, unsigned long most)
{
	const char *text = strchr(option, '=') + 1;
	unsigned long number;
	char *end;

	errno = 0;
	number = strtoul(text, &end, 10);
	return errno || *end || *text < '0' || *text > '9' || number > most ? 0 : (uint32_t)number;
}

static int parse_option(pcap_t *p, const char *option, struct place *place)
{
	if (!strcmp(option, "mirror") || !strcmp(option, "share")) {
		place->mirror = option[0] == 'm';
		return 0;
	}
	if (!strncmp(option, "name=", 5)) {
		place->name = option + 5;
		return 0;
	}
	if (!strcmp(option, "reconnect")) {
		place->reconnects = true;
		return 0;
	}
	if (!strncmp(option, "quota=", 6)) {
		place->quota = number(option, 65536);
		return place->quota ? 0 : bad_device(p, option, "a quota from 1 to 65536");
	}
	if (!strncmp(option, "group=", 6)) {
		place->group = (uint16_t)number(option, UINT16_MAX);
		place->mirror = false;
		return place->group ? 0 : bad_device(p, option, "a group from 1 to 65535");
	}
	return bad_device(p, option, "mirror, share, group=N, quota=N, name=NAME or reconnect");
}

int parse_device(pcap_t *p, struct place *place)
{
	const char *device = pcap_plugin_get_device(p);
	const char *text = device + strlen(PREFIX);
	char *option, *rest;

	memset(place, 0, sizeof(*place));
	place->mirror = true;
	if (strncmp(device, PREFIX, strlen(PREFIX))) {
		text = getenv(VARIABLE);
		if (!text)
			return bad_device(p, VARIABLE " is not set", PREFIX "PATH");
	}
	if (strlen(text) >= sizeof(place->text))
		return bad_device(p, "too long", "at most 511 bytes");
	strcpy(place->text, text);
	place->path = strtok_r(place->text, ",", &rest);
	if (!place->path)
		return bad_device(p, "no path", "the path of a lender's socket");
	while ((option = strtok_r(NULL, ",", &rest)))
		if (parse_option(p, option, place))
			return PCAP_ERROR;
	return 0;
}

static int add_lender(pcap_if_list_t *list, const char *name, char *errbuf)
{
	bpf_u_int32 flags = PCAP_IF_UP | PCAP_IF_RUNNING | PCAP_IF_CONNECTION_STATUS_NOT_APPLICABLE;

	return pcap_plugin_add_dev(list, name, flags, "packets that cachelane lends", errbuf)
		       ? 0
		       : PCAP_ERROR;
}

/*
 * Whether it ends as lenders' sockets are called: NAME.lend, or lend in a folder. Paths with commas
 * are left out, because no device can name them. So are those with control characters: any user can
 * make such a socket, and a terminal would obey them.
 */
static bool is_called_lend(const char *path)
{
	size_t length = strlen(path);

	for (const char *at = path; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 127 || *at == ',')
			return false;
	return length > 5 &&
	       (!strcmp(path + length - 5, ".lend") || !strcmp(path + length - 5, "/lend"));
}

/*
 * Those whose sockets listen in this network namespace, are called as in the examples, and may be
 * connected to. To ask one would be to join it.
 */
int lender_findalldevs(pcap_if_list_t *list, char *errbuf)
{
	const char *set = getenv(VARIABLE);
	FILE *sockets = fopen("/proc/net/unix", "re");
	char line[256], name[sizeof(line) + sizeof(PREFIX)];
	int result = set ? add_lender(list, "cachelane", errbuf) : 0;

	while (sockets && result == 0 && fgets(line, sizeof(line), sockets)) {
		unsigned flags, type;
		int at = 0;

		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "%*s %*s %*s %x %x %*s %*s %n", &flags, &type, &at) == 2 && at &&
		    flags & 0x10000 && type == SOCK_SEQPACKET && is_called_lend(line + at) &&
		    access(line + at, R_OK | W_OK) == 0) {
			snprintf(name, sizeof(name), PREFIX "%s", line + at);
			result = add_lender(list, name, errbuf);
		}
	}
	if (sockets)
		fclose(sockets);
	return result;
}

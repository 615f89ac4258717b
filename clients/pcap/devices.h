/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What lender.c knows of devices.c. */
#ifndef CACHELANE_PCAP_DEVICES_H
#define CACHELANE_PCAP_DEVICES_H

#include "plugin.h"

#include <stdbool.h>
#include <stdint.h>

#define PREFIX "cachelane:"

/* A lender, as a device names it. */
struct place {
	char text[512];
	const char *path, *name;
	uint32_t quota;
	uint16_t group;
	/* A lender that ends is waited for. */
	bool mirror, reconnects;
};

/* Whether a device is a lender's, by its name. */
bool is_lenders(const char *device);

/* The handle's device: 0, or PCAP_ERROR with the handle's errbuf. */
int parse_device(pcap_t *p, struct place *place);

int lender_findalldevs(pcap_if_list_t *list, char *errbuf);

#endif /* CACHELANE_PCAP_DEVICES_H */

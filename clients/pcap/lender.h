/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What stand_in.c knows of lender.c, beside `pcap_plugin_entry`. */
#ifndef CACHELANE_PCAP_LENDER_H
#define CACHELANE_PCAP_LENDER_H

#include "plugin.h"

extern const struct pcap_plugin pcap_plugin_entry;

/*
 * Whether the program waits by the handle's descriptor, as it may if nobody says otherwise. If it
 * does, the lender wakes it also while it does not wait.
 */
void lender_selects(pcap_t *p, int selects);

#endif /* CACHELANE_PCAP_LENDER_H */

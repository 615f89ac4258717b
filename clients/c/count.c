/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counts the packets that a lender lends, until the lender ends or a signal comes.
 *
 *	cc -O2 -o count count.c && ./count /run/lend
 */
#include "cachelane_lend.h"

#include <inttypes.h>
#include <signal.h>

#define BATCH 256

static volatile sig_atomic_t stop;

static void on_signal(int signal)
{
	(void)signal;
	stop = 1;
}

int main(int argc, char **argv)
{
	static struct cachelane_packet packets[BATCH];
	struct cachelane_borrower borrower;
	uint64_t count = 0, bytes = 0;
	int there = CACHELANE_TIMED_OUT;

	if (argc != 2) {
		fprintf(stderr, "usage: %s SOCKET\n", argv[0]);
		return 2;
	}
	if (cachelane_connect(&borrower, argv[1], NULL) != 0) {
		fprintf(stderr, "%s: %s\n", argv[0], borrower.error);
		return 1;
	}
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);

	while (!stop && there != CACHELANE_CLOSED) {
		int n = cachelane_receive(&borrower, packets, BATCH);

		for (int i = 0; i < n; i++) {
			/* A packet in several frames counts once. */
			count += !(packets[i].flags & CACHELANE_LOAN_MORE);
			bytes += packets[i].len;
		}
		if (n > 0)
			cachelane_give_back(&borrower, packets, n);
		else if (n == 0)
			there = cachelane_wait(&borrower, 100);
		if (n < 0 || there < 0) {
			fprintf(stderr, "%s: %s\n", argv[0], borrower.error);
			return 1;
		}
	}

	printf("%" PRIu64 " packets, %" PRIu64 " bytes, %" PRIu64 " dropped\n", count, bytes,
	       cachelane_dropped(&borrower));
	cachelane_close(&borrower);
	return 0;
}

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A borrower that reads every byte of every packet, as `cachelane borrow --worker` does, until the
 * lender ends.
 *
 *   lend_reader SOCKET
 */
#include "cachelane_lend.h"
#include "peer.h"

#include <inttypes.h>

#define BATCH 256

int main(int argc, char **argv)
{
	static struct cachelane_packet packets[BATCH];
	struct cachelane_borrower borrower;
	int there = CACHELANE_TIMED_OUT;
	uint64_t total = 0;

	if (argc != 2 || cachelane_connect(&borrower, argv[1], NULL) != 0) {
		fprintf(stderr, "%s: %s\n", argv[0], argc == 2 ? borrower.error : "SOCKET");
		return 1;
	}
	while (there >= 0 && there != CACHELANE_CLOSED) {
		int n = cachelane_receive(&borrower, packets, BATCH);

		for (int i = 0; i < n; i++)
			total += sum(packets[i].data, packets[i].len);
		if (n > 0)
			cachelane_give_back(&borrower, packets, n);
		else
			there = n < 0 ? n : cachelane_wait(&borrower, 100);
	}
	printf("%" PRIu64 "\n", total);
	cachelane_close(&borrower);
	return 0;
}

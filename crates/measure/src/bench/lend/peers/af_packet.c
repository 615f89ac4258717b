/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Workers that each read their own copy of their packets: an AF_PACKET ring (TPACKET_V3) for each,
 * and PACKET_FANOUT_HASH to share the flows out. As Documentation/networking/packet_mmap.rst has
 * it: blocks of 1 MiB, a block handed over when it is full or after a while, poll when there is
 * none. Packets that this host sends are not received, and packets that a ring has no room for are
 * dropped.
 *
 *   af_packet INTERFACE WORKERS CPU
 *
 * rx      receives and reads every byte until the time is over; counted are packets that were read
 * median  the same of packets of `cachelane xsk send --pattern seq`: not the time of each, but the
 *         median of how long they took from their sender
 * p99     the 99th percentile of what `median` has measured last
 */
#include "peer.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

#define WORKERS_MAX 64
#define BLOCK_SIZE  (1u << 20)
#define BLOCKS	    16
#define FRAME_SIZE  2048
/* Milliseconds after which a block that is not full is handed over. */
#define RETIRE 10
/* Where such a packet says when it was made: nanoseconds, in network order. */
#define STAMP (14 + 20 + 8 + 8)
/* Its bytes: the lower ones of the time. */
#define STAMP_BYTES 6
#define STAMP_MASK  ((1ull << 48) - 1)
/* Delays that a worker has room for. */
#define DELAYS (1u << 18)

struct worker {
	pthread_t thread;
	int fd;
	unsigned char *ring;
	unsigned next;
	uint64_t count, sum;
	uint64_t until;
	/* Where it writes delays, unless it is NULL, and how many. */
	uint64_t *delays;
	size_t delay_count;
};

static struct worker workers[WORKERS_MAX];
static int worker_count, cpu;
static uint64_t *all_delays;
static size_t all_count;

static void set(int fd, int option, const void *value, socklen_t size, const char *what)
{
	if (setsockopt(fd, SOL_PACKET, option, value, size))
		fail(what);
}

static void open_ring(struct worker *worker, unsigned interface)
{
	int version = TPACKET_V3, yes = 1;
	int fanout = (getpid() & 0xffff) | PACKET_FANOUT_HASH << 16;
	struct tpacket_req3 request = {
		.tp_block_size = BLOCK_SIZE,
		.tp_block_nr = BLOCKS,
		.tp_frame_size = FRAME_SIZE,
		.tp_frame_nr = BLOCK_SIZE / FRAME_SIZE * BLOCKS,
		.tp_retire_blk_tov = RETIRE,
	};
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ETH_P_ALL),
		.sll_ifindex = (int)interface,
	};

	/* Without a protocol until it is bound: nothing of other interfaces. */
	worker->fd = socket(AF_PACKET, SOCK_RAW, 0);
	if (worker->fd < 0)
		fail("socket");
	set(worker->fd, PACKET_VERSION, &version, sizeof(version), "TPACKET_V3");
	set(worker->fd, PACKET_RX_RING, &request, sizeof(request), "the ring");
	set(worker->fd, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes), "PACKET_IGNORE_OUTGOING");
	worker->ring = mmap(NULL, (size_t)BLOCK_SIZE * BLOCKS, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_POPULATE, worker->fd, 0);
	if (worker->ring == MAP_FAILED)
		fail("mmap of the ring");
	if (bind(worker->fd, (struct sockaddr *)&address, sizeof(address)))
		fail("bind");
	set(worker->fd, PACKET_FANOUT, &fanout, sizeof(fanout), "PACKET_FANOUT_HASH");
}

static struct tpacket_block_desc *block(struct worker *worker)
{
	return (void *)(worker->ring + (size_t)BLOCK_SIZE * worker->next);
}

/* Acquire: the packets were written before. */
static bool ready(struct worker *worker)
{
	uint32_t *status = &block(worker)->hdr.bh1.block_status;

	return __atomic_load_n(status, __ATOMIC_ACQUIRE) & TP_STATUS_USER;
}

static void give_back(struct worker *worker)
{
	/* Release: they were read before. */
	__atomic_store_n(&block(worker)->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
	worker->next = (worker->next + 1) % BLOCKS;
}

static void note_delay(struct worker *worker, const unsigned char *bytes, uint32_t length,
		       uint64_t now)
{
	uint64_t sent = 0;

	if (length < STAMP + STAMP_BYTES || worker->delay_count == DELAYS)
		return;
	for (int i = 0; i < STAMP_BYTES; i++)
		sent = sent << 8 | bytes[STAMP + i];
	worker->delays[worker->delay_count++] = (now - sent) & STAMP_MASK;
}

static void read_block(struct worker *worker)
{
	uint64_t now = worker->delays ? now_ns() : 0;
	struct tpacket_hdr_v1 *header = &block(worker)->hdr.bh1;
	unsigned char *at = (unsigned char *)block(worker) + header->offset_to_first_pkt;

	for (uint32_t i = 0; i < header->num_pkts; i++) {
		struct tpacket3_hdr *packet = (void *)at;

		worker->sum += sum(at + packet->tp_mac, packet->tp_snaplen);
		if (worker->delays)
			note_delay(worker, at + packet->tp_mac, packet->tp_snaplen, now);
		at += packet->tp_next_offset;
	}
	worker->count += header->num_pkts;
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	struct pollfd fd = {.fd = worker->fd, .events = POLLIN};

	pin(cpu);
	/* What came before. */
	for (int i = 0; i < BLOCKS && ready(worker); i++)
		give_back(worker);
	worker->count = 0;
	while (now_ns() < worker->until) {
		if (!ready(worker)) {
			poll(&fd, 1, RETIRE);
			continue;
		}
		read_block(worker);
		give_back(worker);
	}
	return NULL;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static const char *delay_at(double quantile, struct result *result)
{
	if (!all_count)
		return "no delays";
	result->count = all_count;
	result->ns = (double)all_delays[(size_t)(quantile * (double)(all_count - 1))];
	return NULL;
}

/* Puts all workers' delays in order. */
static const char *sort_delays(void)
{
	all_count = 0;
	for (int i = 0; i < worker_count; i++) {
		memcpy(all_delays + all_count, workers[i].delays,
		       workers[i].delay_count * sizeof(*all_delays));
		all_count += workers[i].delay_count;
	}
	qsort(all_delays, all_count, sizeof(*all_delays), compare);
	return NULL;
}

static const char *room_for_delays(void)
{
	all_delays = all_delays ?: malloc((size_t)worker_count * DELAYS * sizeof(*all_delays));
	for (int i = 0; i < worker_count && all_delays; i++) {
		struct worker *worker = &workers[i];

		worker->delay_count = 0;
		worker->delays = worker->delays ?: malloc(DELAYS * sizeof(*worker->delays));
		if (!worker->delays)
			return "no memory";
	}
	return all_delays ? NULL : "no memory";
}

static const char *receive(long ms, struct result *result)
{
	uint64_t start = now_ns(), count = 0;

	for (int i = 0; i < worker_count; i++) {
		workers[i].until = start + (uint64_t)ms * 1000000u;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			return "no thread";
	}
	for (int i = 0; i < worker_count; i++) {
		pthread_join(workers[i].thread, NULL);
		count += workers[i].count;
	}
	if (!count)
		return "no packets";
	result->count = count;
	result->ns = (double)(now_ns() - start) / (double)count;
	return NULL;
}

static const char *measure(const char *pattern, int threads, long ms, struct result *result)
{
	const char *why;

	if (threads != worker_count)
		return "expected as many threads as workers";
	if (!strcmp(pattern, "rx"))
		return receive(ms, result);
	if (!strcmp(pattern, "p99"))
		return delay_at(0.99, result);
	if (strcmp(pattern, "median"))
		return "expected rx, median or p99";
	why = room_for_delays();
	if (!why)
		why = receive(ms, result);
	if (!why)
		why = sort_delays();
	return why ?: delay_at(0.5, result);
}

int main(int argc, char **argv)
{
	unsigned interface = argc == 4 ? if_nametoindex(argv[1]) : 0;

	worker_count = argc == 4 ? atoi(argv[2]) : 0;
	if (!interface || worker_count < 1 || worker_count > WORKERS_MAX) {
		fprintf(stderr, "usage: af_packet INTERFACE WORKERS CPU\n");
		return 1;
	}
	cpu = atoi(argv[3]);
	for (int i = 0; i < worker_count; i++)
		open_ring(&workers[i], interface);
	return serve(measure);
}

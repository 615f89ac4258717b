/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A plain AF_XDP loop, as the usual sample program (xdpsock) has it, by bare system calls: one
 * socket in copy mode on one queue, 4096 frames of 4096 bytes, rings of 2048 descriptors (fill
 * 4096), 64 packets at a time, need-wakeup in use. No frame is allocated: to send is to go round
 * the area, and a received frame goes straight back to the fill ring.
 *
 *   xdp_plain INTERFACE QUEUE none|skb|native CPU
 *
 * skb and native say where its XDP program is attached, which sends everything that arrives on
 * the queue to the socket; without one it can only send. The patterns of its requests:
 *
 *   tx    sends 60-byte frames (64 on the wire, with the checksum) until the time is over;
 *         counted are those that the kernel has completed
 *   rx    receives and drops
 *   nap   receives, reads every byte, and sleeps for 2 ms whenever there is nothing: where packets
 *         are few, the least that it takes to read them
 */
#include "peer.h"

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FRAMES	    4096
#define FRAME_SIZE  4096
#define FILL_SIZE   4096
#define RING_SIZE   2048
#define BATCH	    64
#define PACKET_SIZE 60
#define NAP_US	    2000

struct ring {
	uint32_t *producer, *consumer, *flags;
	void *descriptors;
	uint32_t size;
	/* The index that this side writes, and what it last saw of the other's. */
	uint32_t mine, theirs;
};

static int fd;
static unsigned char *area;
static struct ring fill, completion, rx, tx;
static uint32_t next_frame, outstanding;
/* What was read, so that it is read. */
static volatile uint64_t total;

static void set(int option, const void *value, socklen_t size, const char *what)
{
	if (setsockopt(fd, SOL_XDP, option, value, size))
		fail(what);
}

static void map_ring(struct ring *ring, int option, uint32_t size, size_t entry,
		     const struct xdp_ring_offset *offset, off_t where)
{
	size_t length = offset->desc + size * entry;
	unsigned char *base;

	set(option, &size, sizeof(size), "the size of a ring");
	base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, where);
	if (base == MAP_FAILED)
		fail("mmap of a ring");
	ring->producer = (uint32_t *)(base + offset->producer);
	ring->consumer = (uint32_t *)(base + offset->consumer);
	ring->flags = (uint32_t *)(base + offset->flags);
	ring->descriptors = base + offset->desc;
	ring->size = size;
}

/* Whether a ring that we fill has room for so many. */
static bool room(struct ring *ring, uint32_t count)
{
	if (ring->size - (ring->mine - ring->theirs) >= count)
		return true;
	/* Acquire: the kernel has read what it consumed before we write over it. */
	ring->theirs = __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE);
	return ring->size - (ring->mine - ring->theirs) >= count;
}

/* How many entries, at most BATCH, a ring that we empty has. */
static uint32_t peek(struct ring *ring)
{
	uint32_t ready = ring->theirs - ring->mine;

	if (!ready) {
		/* Acquire: the entries are written before the index. */
		ring->theirs = __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE);
		ready = ring->theirs - ring->mine;
	}
	return ready < BATCH ? ready : BATCH;
}

static void submit(struct ring *ring, uint32_t count)
{
	ring->mine += count;
	__atomic_store_n(ring->producer, ring->mine, __ATOMIC_RELEASE);
}

static void release(struct ring *ring, uint32_t count)
{
	ring->mine += count;
	__atomic_store_n(ring->consumer, ring->mine, __ATOMIC_RELEASE);
}

static bool needs_wakeup(const struct ring *ring)
{
	return __atomic_load_n(ring->flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP;
}

static void kick(void)
{
	if (sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0) >= 0 || errno == ENOBUFS ||
	    errno == EAGAIN || errno == EBUSY || errno == ENETDOWN)
		return;
	fail("sendto");
}

/* Has the kernel send, and takes back what it has sent; how many. */
static uint32_t complete(void)
{
	uint32_t count;

	if (!outstanding)
		return 0;
	if (needs_wakeup(&tx))
		kick();
	count = peek(&completion);
	if (count) {
		release(&completion, count);
		outstanding -= count;
	}
	return count;
}

static uint64_t send_until(uint64_t end)
{
	struct xdp_desc *descriptors = tx.descriptors;
	uint64_t count = 0;

	do {
		while (!room(&tx, BATCH)) {
			count += complete();
			if (now_ns() >= end)
				return count;
		}
		for (uint32_t i = 0; i < BATCH; i++) {
			struct xdp_desc *desc = &descriptors[(tx.mine + i) & (tx.size - 1)];

			desc->addr = (uint64_t)(next_frame + i) * FRAME_SIZE;
			desc->len = PACKET_SIZE;
			desc->options = 0;
		}
		submit(&tx, BATCH);
		outstanding += BATCH;
		next_frame = (next_frame + BATCH) % FRAMES;
		count += complete();
	} while (now_ns() < end);
	return count;
}

static uint32_t receive(bool reads)
{
	const struct xdp_desc *descriptors = rx.descriptors;
	uint64_t *addresses = fill.descriptors;
	uint32_t count = peek(&rx);

	if (!count) {
		if (needs_wakeup(&fill))
			recvfrom(fd, NULL, 0, MSG_DONTWAIT, NULL, NULL);
		return 0;
	}
	/* There is room: the ring holds every frame. */
	while (!room(&fill, count))
		;
	for (uint32_t i = 0; i < count; i++) {
		const struct xdp_desc *desc = &descriptors[(rx.mine + i) & (rx.size - 1)];

		if (reads)
			total += sum(area + desc->addr, desc->len);
		addresses[(fill.mine + i) & (fill.size - 1)] = desc->addr & ~(FRAME_SIZE - 1ull);
	}
	submit(&fill, count);
	release(&rx, count);
	return count;
}

/* Gives the kernel every frame, once: a process that only sends keeps them for that. */
static void fill_all(void)
{
	uint64_t *addresses = fill.descriptors;

	if (fill.mine)
		return;
	for (uint64_t i = 0; i < FRAMES; i++)
		addresses[i] = i * FRAME_SIZE;
	submit(&fill, FRAMES);
}

static uint64_t nap_until(uint64_t end)
{
	uint64_t count = 0;

	while (now_ns() < end) {
		uint32_t received = receive(true);

		count += received;
		if (!received)
			usleep(NAP_US);
	}
	return count;
}

static const char *measure(const char *pattern, int threads, long ms, struct result *result)
{
	uint64_t started = now_ns(), end = started + (uint64_t)ms * 1000000u;

	if (threads != 1 || ms < 1)
		return "it has one thread, and some time";
	if (!strcmp(pattern, "tx")) {
		result->count = send_until(end);
	} else if (!strcmp(pattern, "rx") || !strcmp(pattern, "nap")) {
		fill_all();
		/* What came while nobody asked is not of this time. */
		for (int i = 0; i < RING_SIZE / BATCH && receive(false); i++)
			;
		started = now_ns();
		end = started + (uint64_t)ms * 1000000u;
		if (!strcmp(pattern, "nap"))
			result->count = nap_until(end);
		else
			do {
				for (int i = 0; i < 16; i++)
					result->count += receive(false);
			} while (now_ns() < end);
	} else {
		return "no such pattern";
	}
	if (!result->count)
		return "no packet went";
	result->ns = (double)(now_ns() - started) / (double)result->count;
	return NULL;
}

static long bpf(int command, union bpf_attr *attr)
{
	return syscall(__NR_bpf, command, attr, sizeof(*attr));
}

/* A program that sends what arrives on a queue to the socket that the map has for it. */
static int load_program(int map)
{
	const struct bpf_insn program[] = {
		/* r2 = ctx->rx_queue_index */
		{BPF_LDX | BPF_MEM | BPF_W, BPF_REG_2, BPF_REG_1, 16, 0},
		/* r1 = map */
		{BPF_LD | BPF_DW | BPF_IMM, BPF_REG_1, BPF_PSEUDO_MAP_FD, 0, map},
		{0, 0, 0, 0, 0},
		/* r3 = what happens to packets of other queues */
		{BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_3, 0, 0, XDP_PASS},
		{BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map},
		{BPF_JMP | BPF_EXIT, 0, 0, 0, 0},
	};
	union bpf_attr attr = {
		.prog_type = BPF_PROG_TYPE_XDP,
		.insns = (uint64_t)(uintptr_t)program,
		.insn_cnt = sizeof(program) / sizeof(program[0]),
		.license = (uint64_t)(uintptr_t) "Dual MIT/GPL",
	};
	long result = bpf(BPF_PROG_LOAD, &attr);

	if (result < 0)
		fail("BPF_PROG_LOAD");
	return (int)result;
}

/* Attached as a link, it is gone when this process is. */
static void attach(unsigned ifindex, uint32_t queue, uint32_t flags)
{
	union bpf_attr map = {
		.map_type = BPF_MAP_TYPE_XSKMAP,
		.key_size = 4,
		.value_size = 4,
		.max_entries = queue + 1,
	};
	long map_fd = bpf(BPF_MAP_CREATE, &map);

	if (map_fd < 0)
		fail("BPF_MAP_CREATE");
	union bpf_attr entry = {
		.map_fd = (uint32_t)map_fd,
		.key = (uint64_t)(uintptr_t)&queue,
		.value = (uint64_t)(uintptr_t)&fd,
	};
	if (bpf(BPF_MAP_UPDATE_ELEM, &entry) < 0)
		fail("BPF_MAP_UPDATE_ELEM");
	union bpf_attr link = {
		.link_create =
			{
				.prog_fd = (uint32_t)load_program((int)map_fd),
				.target_ifindex = ifindex,
				.attach_type = BPF_XDP,
				.flags = flags,
			},
	};
	if (bpf(BPF_LINK_CREATE, &link) < 0)
		fail("BPF_LINK_CREATE");
}

/*
 * Every frame holds the packet that `cachelane xsk send` sends by default, so that the other end
 * has the same work with it: UDP from 198.18.0.1 to 198.18.0.2, port 9, to a hardware address that
 * is nobody's.
 */
static void write_packets(void)
{
	static const unsigned char packet[PACKET_SIZE] = {
		/* Ethernet */
		0x02, 0, 0, 0, 0, 0x02, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0,
		/* IPv4, 46 bytes, not to be fragmented */
		0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0xae, 0x97, 198, 18, 0, 1, 198, 18, 0, 2,
		/* UDP, 26 bytes, without checksum */
		0, 9, 0, 9, 0, 26, 0, 0};

	for (size_t i = 0; i < FRAMES; i++)
		memcpy(area + i * FRAME_SIZE, packet, sizeof(packet));
}

static void open_socket(unsigned ifindex, uint32_t queue)
{
	struct xdp_mmap_offsets offsets;
	struct xdp_umem_reg umem = {.len = (uint64_t)FRAMES * FRAME_SIZE, .chunk_size = FRAME_SIZE};
	struct sockaddr_xdp address = {
		.sxdp_family = AF_XDP,
		.sxdp_ifindex = ifindex,
		.sxdp_queue_id = queue,
		.sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP,
	};
	socklen_t length = sizeof(offsets);

	fd = socket(AF_XDP, SOCK_RAW, 0);
	if (fd < 0)
		fail("socket(AF_XDP)");
	area = mmap(NULL, umem.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		fail("mmap of the area");
	write_packets();
	umem.addr = (uint64_t)(uintptr_t)area;
	set(XDP_UMEM_REG, &umem, sizeof(umem), "XDP_UMEM_REG");
	if (getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length))
		fail("XDP_MMAP_OFFSETS");
	map_ring(&fill, XDP_UMEM_FILL_RING, FILL_SIZE, sizeof(uint64_t), &offsets.fr,
		 XDP_UMEM_PGOFF_FILL_RING);
	map_ring(&completion, XDP_UMEM_COMPLETION_RING, RING_SIZE, sizeof(uint64_t), &offsets.cr,
		 XDP_UMEM_PGOFF_COMPLETION_RING);
	map_ring(&rx, XDP_RX_RING, RING_SIZE, sizeof(struct xdp_desc), &offsets.rx,
		 XDP_PGOFF_RX_RING);
	map_ring(&tx, XDP_TX_RING, RING_SIZE, sizeof(struct xdp_desc), &offsets.tx,
		 XDP_PGOFF_TX_RING);
	/* The kernel may still be taking down the socket of a process that has just ended. */
	for (int tries = 0; bind(fd, (struct sockaddr *)&address, sizeof(address)); tries++) {
		if (errno != EBUSY || tries == 200)
			fail("bind");
		usleep(10000);
	}
}

int main(int argc, char **argv)
{
	uint32_t queue, flags = 0;
	unsigned ifindex;
	int cpu[MAX_CPUS];

	if (argc != 5 || parse_cpus(argv[4], cpu) != 1) {
		fprintf(stderr, "usage: %s INTERFACE QUEUE none|skb|native CPU\n", argv[0]);
		return 2;
	}
	pin(cpu[0]);
	ifindex = if_nametoindex(argv[1]);
	if (!ifindex)
		fail(argv[1]);
	queue = (uint32_t)atoi(argv[2]);
	open_socket(ifindex, queue);
	if (!strcmp(argv[3], "skb"))
		flags = XDP_FLAGS_SKB_MODE;
	else if (!strcmp(argv[3], "native"))
		flags = XDP_FLAGS_DRV_MODE;
	if (flags)
		attach(ifindex, queue, flags);
	return serve(measure);
}

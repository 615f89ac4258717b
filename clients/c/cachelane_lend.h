/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * cachelane lend: a borrower in C.
 *
 * A lender receives packets and lends them: a borrower maps the lender's memory read-only, gets
 * each packet as a descriptor in a ring, reads it where it lies, and gives back a token. This
 * header has the layout of what the two share, and static inline functions that are all that a
 * borrower needs; there is no library to link. docs/lend-protocol.md says what it all means.
 *
 *	struct cachelane_borrower b;
 *	struct cachelane_packet packets[64];
 *	int n;
 *
 *	if (cachelane_connect(&b, "/run/lend", NULL) != 0)
 *		errx(1, "%s", b.error);
 *	while ((n = cachelane_wait(&b, -1)) == CACHELANE_READY) {
 *		n = cachelane_receive(&b, packets, 64);
 *		if (n < 0)
 *			errx(1, "%s", b.error);
 *		for (int i = 0; i < n; i++)
 *			use(packets[i].data, packets[i].len);
 *		cachelane_give_back(&b, packets, n);
 *	}
 *	if (n < 0)
 *		errx(1, "%s", b.error);
 *	cachelane_close(&b);
 *
 * For Linux, in C11 or C++11, with GCC or Clang. Include it before other headers, or define
 * _GNU_SOURCE. A borrower is used by one thread at a time; a thread each with a connection each
 * share the packets of one lender. Nothing is allocated after cachelane_connect.
 *
 * A borrower trusts its lender, as a reader trusts whoever writes: descriptors are checked to lie
 * in a frame, but that bytes stay as they are while they are on loan is the lender's word.
 */
#ifndef CACHELANE_LEND_H
#define CACHELANE_LEND_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#if !defined(POLLRDHUP) || !defined(F_GET_SEALS)
#error "include cachelane_lend.h before other headers, or define _GNU_SOURCE"
#endif

#ifdef __cplusplus
#define CACHELANE_ASSERT static_assert
extern "C" {
#else
#define CACHELANE_ASSERT _Static_assert
#endif

/* ---- The layout, versions 2 and 3. All numbers are in the machine's byte order. ---- */

/* Starts all messages of the handshake: the bytes "CLnd". */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define CACHELANE_MAGIC 0x646e4c43u
#else
#define CACHELANE_MAGIC 0x434c6e64u
#endif

/* The versions that this header speaks, oldest and newest. */
#define CACHELANE_VERSION_MIN 2
#define CACHELANE_VERSION_MAX 3

/* The first version that has groups. */
#define CACHELANE_VERSION_GROUPS 3

/* Bytes of a block that one side writes. */
#define CACHELANE_LINE 128

/* The fewest slots of a ring. */
#define CACHELANE_SLOTS_MIN 32

/* In hello.flags: every packet, beside those who share them out among themselves. */
#define CACHELANE_HELLO_MIRROR 1u

/* Where in hello.flags and welcome.flags the group is: 16 bits. */
#define CACHELANE_GROUP_SHIFT 16

/* In loan.flags: the packet goes on in the next loan of the channel. */
#define CACHELANE_LOAN_MORE 1u

/* In loan.flags: other borrowers have the frame too. */
#define CACHELANE_LOAN_SHARED 2u

/* In loan.flags: its time is that of its packet alone. */
#define CACHELANE_LOAN_STAMPED 4u

/* In welcome.status. */
enum cachelane_status {
	CACHELANE_WELCOME = 0, /* it is a borrower now */
	CACHELANE_VERSION = 1, /* no version in common */
	CACHELANE_INVALID = 2, /* the hello is not one */
	CACHELANE_FULL = 3,    /* there are as many borrowers as there can be */
	CACHELANE_QUOTA = 4,   /* there are not frames enough for such a quota */
	CACHELANE_BUSY = 5,    /* too many handshakes at the moment; later */
	CACHELANE_MIRROR = 6,  /* no mirrors or groups while a ledger is kept for each borrower */
	CACHELANE_CLOSING = 7, /* the lender is about to end */
	CACHELANE_DENIED = 8,  /* its user may not have that */
};

/* In out.ended: why nothing will follow. */
enum cachelane_ending {
	CACHELANE_UNSAID = 0,  /* it was not said */
	CACHELANE_LENDER = 1,  /* the lender ended */
	CACHELANE_OFFENCE = 2, /* this borrower was disconnected for what it did */
	CACHELANE_EVICTED = 3, /* this borrower had its quota, and returned nothing for too long */
};

/* What a borrower says first. */
struct cachelane_hello {
	uint32_t magic;	      /* CACHELANE_MAGIC */
	uint16_t version_min; /* the oldest version that it speaks */
	uint16_t version_max; /* the newest */
	uint32_t flags;	      /* CACHELANE_HELLO_MIRROR, and the group above it */
	uint32_t quota;	      /* the most loans at a time in each channel; 0: the lender's choice */
	char name[48];	      /* what it is called in the lender's tables: UTF-8, zeros after it */
};

/*
 * What the lender answers. With status CACHELANE_WELCOME three descriptors come with it: the
 * memories area, out and back. From then on a message on the socket is a wake-up.
 */
struct cachelane_welcome {
	uint32_t magic;	      /* CACHELANE_MAGIC */
	uint16_t version;     /* the version that is spoken from now on; 0 with a refusal */
	uint16_t status;      /* enum cachelane_status */
	uint32_t frame_size;  /* bytes of a frame, a power of two */
	uint32_t frames;      /* how many frames there are */
	uint64_t area_len;    /* bytes of the area to map */
	uint32_t quota;	      /* the most loans at a time in each channel */
	uint32_t slots;	      /* slots of each ring, a power of two */
	uint32_t channels;    /* how many channels there are */
	uint32_t flags;	      /* CACHELANE_HELLO_MIRROR, and the group above it */
	uint64_t out_len;     /* bytes of the memory out */
	uint64_t back_len;    /* bytes of the memory back */
	uint16_t version_min; /* the oldest version that the lender speaks */
	uint16_t version_max; /* the newest */
	uint32_t reserved;    /* 0 */
	char reason[96];      /* why it was refused, or the device: UTF-8, zeros after it */
};

/*
 * What a borrower says once it has mapped what came with the welcome. The lender answers with a
 * first wake-up, once it lends to it.
 */
struct cachelane_mapped {
	uint32_t magic; /* CACHELANE_MAGIC */
};

/* One frame on loan: a slot of a ring in the memory out. */
struct cachelane_loan {
	uint64_t addr;	/* where the packet, or this part of it, begins in the area */
	uint32_t len;	/* its bytes, at least 1; all of them in one frame */
	uint32_t token; /* what goes back, in the channel that this came in */
	uint32_t flags; /* CACHELANE_LOAN_MORE, CACHELANE_LOAN_SHARED, CACHELANE_LOAN_STAMPED */
	uint32_t hash;	/* the same for all packets of a flow, in both directions */
	uint64_t time;	/* when it came, or if it is not stamped its batch: ns since 1970 */
};

/* At the start of a channel in the memory out; its slots follow after CACHELANE_LINE bytes. */
struct cachelane_out {
	uint32_t producer; /* how many loans were ever put into the ring, modulo 2^32 */
	uint32_t closed;   /* not 0 once nothing will follow */
	uint64_t dropped;  /* packets dropped because the borrower had its quota */
	uint32_t ended;	   /* in the first channel: enum cachelane_ending */
};

/* At the start of a channel in the memory back; its slots, uint32_t, follow as above. */
struct cachelane_back {
	uint32_t producer; /* how many tokens were ever put into the ring, modulo 2^32 */
};

CACHELANE_ASSERT(sizeof(struct cachelane_hello) == 64, "layout");
CACHELANE_ASSERT(sizeof(struct cachelane_welcome) == 160, "layout");
CACHELANE_ASSERT(sizeof(struct cachelane_mapped) == 4, "layout");
CACHELANE_ASSERT(sizeof(struct cachelane_loan) == 32, "layout");
CACHELANE_ASSERT(sizeof(struct cachelane_out) == 24, "layout");

/* Where the word `asleep` is in the memory back. */
#define CACHELANE_ASLEEP 0

/* Where a channel is in the memory out; of the number of channels, how long that memory is. */
static inline uint64_t cachelane_out_channel(uint32_t slots, uint32_t channel)
{
	return channel * (CACHELANE_LINE + (uint64_t)slots * sizeof(struct cachelane_loan));
}

/* Where a channel is in the memory back; of the number of channels, how long that memory is. */
static inline uint64_t cachelane_back_channel(uint32_t slots, uint32_t channel)
{
	return CACHELANE_LINE + channel * (CACHELANE_LINE + (uint64_t)slots * sizeof(uint32_t));
}

/* ---- A borrower ---- */

/* What to ask the lender for. All zero is a good choice. */
struct cachelane_options {
	const char *name; /* up to 48 bytes; NULL: the program's */
	uint32_t quota;	  /* as in the hello */
	uint32_t flags;	  /* CACHELANE_HELLO_MIRROR: every packet, whatever others get */
	int timeout_ms;	  /* how long to wait for the lender's answer; 0: 2000 */
	uint16_t group;	  /* whose borrowers share the packets; each group gets all of them */
	int patience_ms;  /* how long to try where there is no lender, or no room; < 0: no limit */
};

/* A channel's rings, as far as this side has come. */
struct cachelane_channel {
	const struct cachelane_out *out;
	const struct cachelane_loan *loans;
	struct cachelane_back *back;
	uint32_t *tokens;
	uint32_t next_loan;
	uint32_t next_token;
};

/* A connection to a lender. Read what has a remark; the rest is for the functions below. */
struct cachelane_borrower {
	const unsigned char *area; /* all frames, to be read */
	uint64_t area_len;
	uint32_t frame_size; /* bytes of a frame */
	uint32_t frames;     /* how many frames the lender has */
	uint32_t quota;	     /* the most loans at a time in each channel */
	uint32_t channels;   /* how many channels there are */
	uint32_t flags;	     /* CACHELANE_HELLO_MIRROR if it gets every packet; the group */
	int status;	     /* after a refusal, the lender's enum cachelane_status; else 0 */
	char error[256];     /* after a failure, what it was, for people */
	int socket; /* to be polled between cachelane_sleep_begin and cachelane_sleep_end */
	int gone;
	uint32_t mask;
	uint32_t first;
	uint32_t awake;
	uint32_t *asleep;
	void *out;
	void *back;
	uint64_t out_len;
	uint64_t back_len;
	struct cachelane_channel *channel;
};

/* A packet, or a part of one, on loan. */
struct cachelane_packet {
	const unsigned char *data; /* its bytes, which stay where they are until it is given back */
	uint64_t time;	/* when it came, or if not ..._STAMPED its batch: ns since 1970 */
	uint32_t len;	/* how many bytes, at least 1 */
	uint32_t flags; /* CACHELANE_LOAN_MORE: it goes on in the next one; ... */
	uint32_t hash;	/* the same for all packets of a flow, in both directions */
	uint32_t token;
	uint32_t channel;
};

/* What cachelane_wait came to. */
enum cachelane_wait {
	CACHELANE_TIMED_OUT = 0, /* nothing came in that time */
	CACHELANE_READY = 1,	 /* there is something to receive */
	CACHELANE_CLOSED = 2,	 /* the lender has ended, and everything it lent was received */
};

/*
 * Connects to the lender that listens on the socket `path`. 0, or -1 with errno and b->error:
 * as connect(2); ECONNABORTED if the lender refuses (b->status says why); ETIMEDOUT; EPROTO if what
 * listens there is no lender; EINVAL for a path or a name that is too long, and for a mirror in a
 * group; EINTR if a signal comes between two
 * tries that patience allows. `options` can be NULL. After a failure there is
 * nothing to close.
 *
 * To go on after the lender's end: close, and connect again, with patience.
 */
static inline int cachelane_connect(struct cachelane_borrower *b, const char *path,
				    const struct cachelane_options *options);

/*
 * Receives whole packets, as many as there are and fit into `max` places; the parts of a packet
 * follow each other. Takes from the channels in turn. How many places were filled, 0 if there is
 * nothing: it does not wait. -1 with errno and b->error: EMSGSIZE if the first packet has more
 * parts than `max`; EPROTO if what the lender has written makes no sense.
 */
static inline int cachelane_receive(struct cachelane_borrower *b, struct cachelane_packet *into,
				    int max);

/* Gives back `n` that were received, in any order, each once. The lender sees them at the end. */
static inline void cachelane_give_back(struct cachelane_borrower *b,
				       const struct cachelane_packet *packets, int n);

/*
 * Sleeps until there is something to receive, or the lender is gone, or the time is over: an
 * enum cachelane_wait, or -1 with errno and b->error. Once everything was received: ECONNRESET if
 * the lender is gone and did not say that it ends (it was killed, or it crashed); ECONNABORTED if
 * it has disconnected this borrower for an offence; ETIMEDOUT if it did that because this borrower
 * had its quota and returned nothing for longer than borrowers may. Less than 0 ms is no limit. 0
 * only looks, and costs the lender nothing: so one that never sleeps learns that the lender is
 * gone. A signal is no reason to return; who must see one gives a limit.
 */
static inline int cachelane_wait(struct cachelane_borrower *b, int timeout_ms);

/*
 * For programs that wait with a poll of their own, for this and other things. If there is something
 * to receive, or the lender is gone, the answer is as that of cachelane_wait. CACHELANE_TIMED_OUT
 * if not: then b->socket becomes readable (POLLIN) once there is. Call cachelane_sleep_end after
 * that, and before anything is received.
 */
static inline int cachelane_sleep_begin(struct cachelane_borrower *b);
static inline void cachelane_sleep_end(struct cachelane_borrower *b);

/* Packets that the lender dropped because this borrower had its quota. */
static inline uint64_t cachelane_dropped(const struct cachelane_borrower *b);

/* Ends the connection. What is on loan goes back; its bytes are not there any more. */
static inline void cachelane_close(struct cachelane_borrower *b);

/* ---- How it is done ---- */

static inline int cachelane_fail(struct cachelane_borrower *b, int error, const char *what,
				 const char *detail)
{
	snprintf(b->error, sizeof(b->error), "%s%s%s", what, detail[0] ? ": " : "", detail);
	errno = error;
	return -1;
}

static inline int cachelane_fail_errno(struct cachelane_borrower *b, const char *what)
{
	return cachelane_fail(b, errno, what, strerror(errno));
}

static inline int cachelane_out_of_step(struct cachelane_borrower *b, const char *what)
{
	return cachelane_fail(b, EPROTO, "that is no lender, or one that is out of step", what);
}

static inline int64_t cachelane_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Milliseconds until then, as poll(2) takes them. */
static inline int cachelane_left_ms(int64_t until)
{
	int64_t left = until - cachelane_now_ms();

	return left > 0 ? (int)left : 0;
}

static inline int cachelane_hello_send(struct cachelane_borrower *b,
				       const struct cachelane_options *options)
{
	const char *name = options->name ? options->name : program_invocation_short_name;
	struct cachelane_hello hello;
	size_t len = strlen(name);

	memset(&hello, 0, sizeof(hello));
	if (options->group && options->flags & CACHELANE_HELLO_MIRROR)
		return cachelane_fail(b, EINVAL, "a mirror gets everything, and is in no group",
				      "");
	if (len > sizeof(hello.name)) {
		if (options->name)
			return cachelane_fail(b, EINVAL, "a name of more than 48 bytes", name);
		len = sizeof(hello.name);
	}
	memcpy(hello.name, name, len);
	hello.magic = CACHELANE_MAGIC;
	hello.version_min = options->group ? CACHELANE_VERSION_GROUPS : CACHELANE_VERSION_MIN;
	hello.version_max = CACHELANE_VERSION_MAX;
	hello.flags = options->flags | (uint32_t)options->group << CACHELANE_GROUP_SHIFT;
	hello.quota = options->quota;
	if (send(b->socket, &hello, sizeof(hello), MSG_NOSIGNAL) < 0 && errno != EPIPE &&
	    errno != ECONNRESET)
		return cachelane_fail_errno(b, "cannot say hello");
	/* Where the lender has closed already, it may have said why. */
	return 0;
}

/* The answer, and the descriptors with it, of which there are `*count`. */
static inline int cachelane_welcome_receive(struct cachelane_borrower *b,
					    struct cachelane_welcome *welcome, int fds[3],
					    int *count, int64_t until)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(3 * sizeof(int))];
	} control;
	struct iovec iov = {welcome, sizeof(*welcome)};
	struct pollfd wait = {b->socket, POLLIN, 0};
	struct cmsghdr *cmsg;
	struct msghdr message;
	ssize_t got;
	size_t at;
	int resets = 0, too_many = 0;

	*count = 0;
	for (;;) {
		int ready = poll(&wait, 1, cachelane_left_ms(until));

		if (ready == 0)
			return cachelane_fail(b, ETIMEDOUT, "the lender did not answer", "");
		if (ready < 0 && errno != EINTR)
			return cachelane_fail_errno(b, "cannot wait for the lender");
		memset(&message, 0, sizeof(message));
		message.msg_iov = &iov;
		message.msg_iovlen = 1;
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		got = recvmsg(b->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (got >= 0)
			break;
		/* One that closes before it has read our hello; what it said comes after that. */
		if (errno == ECONNRESET && resets++ == 0)
			continue;
		if (errno != EAGAIN && errno != EINTR)
			return cachelane_fail_errno(b, "the lender did not answer");
	}
	for (cmsg = CMSG_FIRSTHDR(&message); cmsg; cmsg = CMSG_NXTHDR(&message, cmsg)) {
		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		for (at = 0; at < (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int); at++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + at * sizeof(int), sizeof(int));
			if (*count < 3) {
				fds[(*count)++] = fd;
				continue;
			}
			close(fd);
			too_many = 1;
		}
	}
	if (got == 0)
		return cachelane_fail(b, ECONNABORTED, "the lender closed and did not say why", "");
	if (got != sizeof(*welcome) || too_many || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		return cachelane_out_of_step(b, "an answer of another size");
	return 0;
}

/* Whether it is a welcome, and all numbers in it go together. */
static inline int cachelane_welcome_check(struct cachelane_borrower *b,
					  const struct cachelane_welcome *w)
{
	char reason[sizeof(w->reason) + 1];
	size_t at;

	if (w->magic != CACHELANE_MAGIC)
		return cachelane_out_of_step(b, "an answer that does not start as a lender's");
	if (w->status != CACHELANE_WELCOME) {
		memcpy(reason, w->reason, sizeof(w->reason));
		reason[sizeof(w->reason)] = 0;
		for (at = 0; reason[at]; at++)
			if ((unsigned char)reason[at] < ' ' || reason[at] == 127)
				reason[at] = '?';
		b->status = w->status;
		return cachelane_fail(b, ECONNABORTED, "the lender refuses", reason);
	}
	if (w->version < CACHELANE_VERSION_MIN || w->version > CACHELANE_VERSION_MAX)
		return cachelane_out_of_step(b, "a version that was not offered");
	if (w->frame_size == 0 || (w->frame_size & (w->frame_size - 1)) || w->frames == 0 ||
	    w->area_len < (uint64_t)w->frames * w->frame_size)
		return cachelane_out_of_step(b, "frames that are none");
	if (w->slots < CACHELANE_SLOTS_MIN || (w->slots & (w->slots - 1)) || w->slots > 1u << 24 ||
	    w->channels == 0 || w->channels > 1u << 12 || w->quota == 0 || w->quota > w->slots ||
	    w->out_len < cachelane_out_channel(w->slots, w->channels) ||
	    w->back_len < cachelane_back_channel(w->slots, w->channels))
		return cachelane_out_of_step(b, "rings that are none");
	if (w->area_len > SIZE_MAX || w->out_len > SIZE_MAX || w->back_len > SIZE_MAX)
		return cachelane_out_of_step(b, "more memory than can be mapped");
	return 0;
}

/* Maps memory that cannot shrink, so that reading it cannot fail. */
static inline void *cachelane_map(struct cachelane_borrower *b, int fd, uint64_t len, int access)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat stat;
	void *start;

	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &stat) != 0 ||
	    (uint64_t)stat.st_size < len) {
		cachelane_out_of_step(b, "memory that is not sealed, or too short");
		return NULL;
	}
	start = mmap(NULL, (size_t)len, access, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (start == MAP_FAILED) {
		cachelane_fail_errno(b, "cannot map the lender's memory");
		return NULL;
	}
	return start;
}

static inline int cachelane_map_all(struct cachelane_borrower *b, const struct cachelane_welcome *w,
				    const int fds[3])
{
	uint32_t at;

	b->area_len = w->area_len;
	b->out_len = w->out_len;
	b->back_len = w->back_len;
	b->area = (const unsigned char *)cachelane_map(b, fds[0], w->area_len, PROT_READ);
	if (!b->area)
		return -1;
	b->out = cachelane_map(b, fds[1], w->out_len, PROT_READ);
	if (!b->out)
		return -1;
	b->back = cachelane_map(b, fds[2], w->back_len, PROT_READ | PROT_WRITE);
	if (!b->back)
		return -1;
	b->channel =
		(struct cachelane_channel *)calloc(w->channels, sizeof(struct cachelane_channel));
	if (!b->channel)
		return cachelane_fail_errno(b, "no memory");
	for (at = 0; at < w->channels; at++) {
		char *out = (char *)b->out + cachelane_out_channel(w->slots, at);
		char *back = (char *)b->back + cachelane_back_channel(w->slots, at);

		b->channel[at].out = (const struct cachelane_out *)out;
		b->channel[at].loans = (const struct cachelane_loan *)(out + CACHELANE_LINE);
		b->channel[at].back = (struct cachelane_back *)back;
		b->channel[at].tokens = (uint32_t *)(back + CACHELANE_LINE);
	}
	b->asleep = (uint32_t *)((char *)b->back + CACHELANE_ASLEEP);
	b->frame_size = w->frame_size;
	b->frames = w->frames;
	b->quota = w->quota;
	b->channels = w->channels;
	b->flags = w->flags;
	b->mask = w->slots - 1;
	return 0;
}

/* Says that all is mapped, and waits until the lender lends to us. */
static inline int cachelane_mapped_send(struct cachelane_borrower *b, int64_t until)
{
	struct cachelane_mapped mapped = {CACHELANE_MAGIC};
	struct pollfd wait = {b->socket, POLLIN, 0};
	char wake[16];
	ssize_t got;

	if (send(b->socket, &mapped, sizeof(mapped), MSG_NOSIGNAL) < 0 && errno != EPIPE &&
	    errno != ECONNRESET)
		return cachelane_fail_errno(b, "cannot say that all is mapped");
	for (;;) {
		int ready = poll(&wait, 1, cachelane_left_ms(until));

		if (ready == 0)
			return cachelane_fail(b, ETIMEDOUT, "the lender did not take us in", "");
		if (ready < 0 && errno != EINTR)
			return cachelane_fail_errno(b, "cannot wait for the lender");
		got = recv(b->socket, wake, sizeof(wake), MSG_DONTWAIT);
		if (got > 0)
			return 0;
		if (got == 0 || errno == ECONNRESET)
			return cachelane_fail(b, ECONNABORTED,
					      "the lender closed and did not say why", "");
		if (errno != EAGAIN && errno != EINTR)
			return cachelane_fail_errno(b, "cannot wait for the lender");
	}
}

static inline int cachelane_join(struct cachelane_borrower *b, const char *path,
				 const struct cachelane_options *options)
{
	int timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : 2000;
	struct timeval timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
	int64_t until = cachelane_now_ms() + timeout_ms;
	int fds[3] = {-1, -1, -1}, count = 0, at, failed;
	struct cachelane_welcome welcome;
	struct sockaddr_un address;

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	if (strlen(path) >= sizeof(address.sun_path))
		return cachelane_fail(b, EINVAL, "no path of a socket", path);
	memcpy(address.sun_path, path, strlen(path));
	b->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (b->socket < 0)
		return cachelane_fail_errno(b, "no socket");
	/* A connect waits where the lender has too many to accept. */
	setsockopt(b->socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	while (connect(b->socket, (const struct sockaddr *)&address, sizeof(address)) != 0) {
		if (errno == EAGAIN)
			return cachelane_fail(b, ETIMEDOUT, "the lender did not accept", path);
		if (errno != EINTR || cachelane_left_ms(until) == 0)
			return cachelane_fail_errno(b, path);
	}
	if (cachelane_hello_send(b, options) != 0)
		return -1;
	failed = cachelane_welcome_receive(b, &welcome, fds, &count, until) != 0 ||
		 cachelane_welcome_check(b, &welcome) != 0;
	if (!failed && count != 3)
		failed = cachelane_out_of_step(b, "too few descriptors");
	if (!failed)
		failed = cachelane_map_all(b, &welcome, fds);
	/* To map takes as long as the area is large. */
	if (!failed)
		failed = cachelane_mapped_send(b, cachelane_now_ms() + timeout_ms);
	for (at = 0; at < count; at++)
		close(fds[at]);
	return failed ? -1 : 0;
}

/* Whether what went wrong is no reason to give up: no lender there, or one without room. */
static inline int cachelane_may_pass(const struct cachelane_borrower *b, int error)
{
	switch (b->status) {
	case CACHELANE_WELCOME:
		return error == ENOENT || error == ECONNREFUSED || error == ETIMEDOUT ||
		       error == ECONNABORTED;
	case CACHELANE_FULL:
	case CACHELANE_QUOTA:
	case CACHELANE_BUSY:
	case CACHELANE_CLOSING:
		return 1;
	default:
		return 0;
	}
}

static inline int cachelane_connect(struct cachelane_borrower *b, const char *path,
				    const struct cachelane_options *options)
{
	struct timespec pause = {0, 100000000};
	struct cachelane_options none;
	int64_t until;
	int error;

	memset(&none, 0, sizeof(none));
	options = options ? options : &none;
	until = cachelane_now_ms() + options->patience_ms;
	for (;;) {
		memset(b, 0, sizeof(*b));
		b->socket = -1;
		if (cachelane_join(b, path, options) == 0)
			return 0;
		error = errno;
		cachelane_close(b);
		errno = error;
		if (!cachelane_may_pass(b, error) || options->patience_ms == 0 ||
		    (options->patience_ms > 0 && cachelane_left_ms(until) == 0))
			return -1;
		if (nanosleep(&pause, NULL) != 0)
			return cachelane_fail_errno(b, "waiting for the lender");
	}
}

/* How many loans there are to read, or -1. */
static inline int64_t cachelane_ready(struct cachelane_borrower *b,
				      const struct cachelane_channel *c)
{
	/* Acquire: what was put into the ring before is seen; the lender's store releases it. */
	uint32_t ready = __atomic_load_n(&c->out->producer, __ATOMIC_ACQUIRE) - c->next_loan;

	if (ready > b->mask + 1)
		return cachelane_out_of_step(b, "an index of a ring");
	return ready;
}

/* Takes whole packets from a channel into `room` places: stops after `share`. */
static inline int cachelane_take(struct cachelane_borrower *b, uint32_t channel,
				 struct cachelane_packet *into, int share, int room)
{
	struct cachelane_channel *c = &b->channel[channel];
	uint64_t area_len = (uint64_t)b->frames * b->frame_size;
	int64_t ready = cachelane_ready(b, c);
	int at, whole = 0;

	if (ready < 0)
		return -1;
	for (at = 0; at < ready && at < room && whole < share; at++) {
		struct cachelane_loan loan = c->loans[(c->next_loan + (uint32_t)at) & b->mask];
		uint64_t offset = loan.addr & (b->frame_size - 1);

		if (loan.addr >= area_len || loan.len == 0 || offset + loan.len > b->frame_size)
			return cachelane_out_of_step(b, "a loan that is not in one frame");
		into[at].data = b->area + loan.addr;
		into[at].time = loan.time;
		into[at].len = loan.len;
		into[at].flags = loan.flags;
		into[at].hash = loan.hash;
		into[at].token = loan.token;
		into[at].channel = channel;
		if (!(loan.flags & CACHELANE_LOAN_MORE))
			whole = at + 1;
	}
	c->next_loan += (uint32_t)whole;
	return whole;
}

/*
 * Whether the first packet there has more parts than max. One that fits has come after we looked
 * for packets.
 */
static inline int cachelane_is_too_long(struct cachelane_borrower *b,
					const struct cachelane_channel *c, int max)
{
	int64_t ready = cachelane_ready(b, c);
	int64_t at;

	for (at = 0; at < ready; at++)
		if (!(c->loans[(c->next_loan + (uint32_t)at) & b->mask].flags &
		      CACHELANE_LOAN_MORE))
			return at >= max;
	return 0;
}

static inline int cachelane_receive(struct cachelane_borrower *b, struct cachelane_packet *into,
				    int max)
{
	uint32_t first = b->first, at, channel = 0;
	/* A share for each; then whatever is there, for those that have more. */
	int shares[2] = {(int)(((uint32_t)max + b->channels - 1) / b->channels), max};
	int turn, got, filled = 0;

	b->first = first + 1 < b->channels ? first + 1 : 0;
	for (turn = 0; turn < 2; turn++) {
		for (at = 0; at < b->channels && filled < max; at++) {
			channel = first + at < b->channels ? first + at : first + at - b->channels;
			got = cachelane_take(b, channel, into + filled, shares[turn], max - filled);
			if (got < 0)
				/* What is good is received; the error comes again next time. */
				return filled ? filled : -1;
			filled += got;
		}
	}
	for (at = 0; filled == 0 && at < b->channels; at++)
		if (cachelane_is_too_long(b, &b->channel[at], max))
			return cachelane_fail(b, EMSGSIZE, "a packet has more parts than places",
					      "");
	return filled;
}

static inline void cachelane_give_back(struct cachelane_borrower *b,
				       const struct cachelane_packet *packets, int n)
{
	uint32_t at;
	int i;

	for (i = 0; i < n; i++) {
		struct cachelane_channel *c = &b->channel[packets[i].channel];

		__atomic_store_n(&c->tokens[c->next_token++ & b->mask], packets[i].token,
				 __ATOMIC_RELAXED);
	}
	for (at = 0; at < b->channels; at++) {
		struct cachelane_channel *c = &b->channel[at];

		/* Release: tokens are seen before the index, which the lender reads with acquire.
		 */
		if (__atomic_load_n(&c->back->producer, __ATOMIC_RELAXED) != c->next_token)
			__atomic_store_n(&c->back->producer, c->next_token, __ATOMIC_RELEASE);
	}
}

/* CLOSED, or why else nothing will follow: in `closed` channels that was said. */
static inline int cachelane_ended(struct cachelane_borrower *b, uint32_t closed)
{
	/* Closed on this side. */
	if (b->channels == 0)
		return CACHELANE_CLOSED;
	/* Relaxed: it was stored before `closed`, and before the socket's end. */
	switch (__atomic_load_n(&b->channel[0].out->ended, __ATOMIC_RELAXED)) {
	case CACHELANE_OFFENCE:
		return cachelane_fail(b, ECONNABORTED,
				      "the lender has disconnected us, for what we did", "");
	case CACHELANE_EVICTED:
		return cachelane_fail(b, ETIMEDOUT,
				      "the lender has disconnected us: we had our quota, and "
				      "returned nothing for too long (lend --evict-after)",
				      "");
	case CACHELANE_UNSAID:
		/* A lender of version 2 has no word for it. */
		if (closed == 0)
			return cachelane_fail(b, ECONNRESET,
					      "the lender is gone and said nothing: it was killed, "
					      "or it crashed",
					      "");
		return CACHELANE_CLOSED;
	default:
		return CACHELANE_CLOSED;
	}
}

/* READY or CLOSED, TIMED_OUT for neither yet, or -1. */
static inline int cachelane_look(struct cachelane_borrower *b)
{
	uint32_t at, closed = 0;

	/* Before the rings: what was published before the end is seen after it. */
	for (at = 0; at < b->channels; at++)
		closed += __atomic_load_n(&b->channel[at].out->closed, __ATOMIC_ACQUIRE) != 0;
	for (at = 0; at < b->channels; at++) {
		int64_t ready = cachelane_ready(b, &b->channel[at]);

		if (ready != 0)
			return ready > 0 ? CACHELANE_READY : -1;
	}
	return closed == b->channels || b->gone ? cachelane_ended(b, closed) : CACHELANE_TIMED_OUT;
}

/* Waits for the socket's end, and for the lender's wake-up if `events` has POLLIN. */
static inline int cachelane_poll(struct cachelane_borrower *b, short events, int timeout_ms)
{
	struct pollfd fd = {b->socket, (short)(events | POLLRDHUP), 0};
	char wake[16];

	if (poll(&fd, 1, timeout_ms) < 0)
		return errno == EINTR ? 0 : cachelane_fail_errno(b, "cannot wait for the lender");
	if (fd.revents & ~POLLIN)
		b->gone = 1;
	/* Takes the wake-up: the lender keeps a few that are not taken, and then sends none. */
	else if (fd.revents && recv(b->socket, wake, sizeof(wake), MSG_DONTWAIT) == 0)
		b->gone = 1;
	return 0;
}

/* Says that it sleeps, and looks once more. */
static inline int cachelane_asleep(struct cachelane_borrower *b)
{
	__atomic_store_n(b->asleep, b->awake + 1, __ATOMIC_RELAXED);
	/*
	 * Between that store and the next look at the rings: the lender fences between its store of
	 * an index and its look at this word, so one of us sees the other. Without it we could
	 * sleep on a loan.
	 */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return cachelane_look(b);
}

static inline void cachelane_awake(struct cachelane_borrower *b)
{
	b->awake += 2;
	__atomic_store_n(b->asleep, b->awake, __ATOMIC_RELAXED);
}

static inline int cachelane_sleep_begin(struct cachelane_borrower *b)
{
	int there = cachelane_asleep(b);

	if (there != CACHELANE_TIMED_OUT)
		cachelane_awake(b);
	return there;
}

static inline void cachelane_sleep_end(struct cachelane_borrower *b)
{
	cachelane_awake(b);
	cachelane_poll(b, POLLIN, 0);
}

static inline int cachelane_wait(struct cachelane_borrower *b, int timeout_ms)
{
	int64_t until = timeout_ms > 0 ? cachelane_now_ms() + timeout_ms : 0;
	int there = cachelane_look(b), left = timeout_ms, failed = 0;

	if (there == CACHELANE_TIMED_OUT && timeout_ms == 0)
		return cachelane_poll(b, 0, 0) != 0 ? -1 : cachelane_look(b);
	while (there == CACHELANE_TIMED_OUT && !failed) {
		there = cachelane_asleep(b);
		if (there == CACHELANE_TIMED_OUT)
			failed = cachelane_poll(b, POLLIN, left);
		cachelane_awake(b);
		if (there == CACHELANE_TIMED_OUT && !failed)
			there = cachelane_look(b);
		if (timeout_ms > 0)
			left = cachelane_left_ms(until);
		if (left == 0)
			break;
	}
	return failed ? -1 : there;
}

static inline uint64_t cachelane_dropped(const struct cachelane_borrower *b)
{
	uint64_t dropped = 0;
	uint32_t at;

	for (at = 0; at < b->channels; at++)
		dropped += __atomic_load_n(&b->channel[at].out->dropped, __ATOMIC_RELAXED);
	return dropped;
}

static inline void cachelane_close(struct cachelane_borrower *b)
{
	/* First, for who asks for the drops in a signal handler. */
	b->channels = 0;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	if (b->area)
		munmap((void *)b->area, (size_t)b->area_len);
	if (b->out)
		munmap(b->out, (size_t)b->out_len);
	if (b->back)
		munmap(b->back, (size_t)b->back_len);
	if (b->socket >= 0)
		close(b->socket);
	free(b->channel);
	b->area = NULL;
	b->out = NULL;
	b->back = NULL;
	b->channel = NULL;
	b->socket = -1;
}

#ifdef __cplusplus
}
#endif

#endif /* CACHELANE_LEND_H */

/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A capture module of libpcap that reads what `cachelane lend` lends.
 *
 *	cachelane:PATH[,mirror|,share|,group=N][,quota=N][,name=NAME][,reconnect]
 *	cachelane			that of the environment variable CACHELANE_LEND
 *
 * A mirror gets every packet; it is the default. A share gets the packets of some flows, which no
 * other borrower gets; or none of its group, where it has one. A handle that reconnects is `away`
 * from the lender's end until there is one again; meanwhile a timer says when to try.
 *
 * The program reads a packet where the lender has received it: what libpcap calls valid until the
 * next call is a loan, which goes back with that call. Only a packet in several frames is copied
 * together. One thread reads a handle at a time, as libpcap has it; others may break its loop.
 *
 * To wait, a reader polls two descriptors: the lender's socket, which brings wake-ups, and `knock`,
 * an event of our own. The program's descriptor is an epoll instance with both. It is readable
 * whenever a read would find something: if loans are left when a read ends, the read knocks.
 */
#include "../c/cachelane_lend.h"
#include "devices.h"
#include "lender.h"

#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#define EXPORT __attribute__((visibility("default")))

/* Loans that are received at a time. */
#define BATCH 256

/* How soon a lender is tried again, and how long its answer may take. */
#define PAUSE_MS  100
#define ANSWER_MS 500

/* An open handle. */
struct capture {
	struct cachelane_borrower borrower;
	/* Received; those before `seen` were handed over, those before `given` went back. */
	struct cachelane_packet packets[BATCH];
	int count, seen, given;
	struct place place;
	bool nanoseconds, nonblocking, selects, away;
	/* It sleeps, by what the lender knows; `knock` is to be read. */
	bool sleeps, knocked;
	int knock, epoll, timer;
	/* By connections before this one: packets that the lender dropped. */
	u_int received, dropped;
	/* The last packet that was handed over lies in its loan. */
	bool lent;
	/* A packet in several frames, put together, or one whose loan could not be kept. */
	unsigned char *whole;
};

/* ---- Waiting ---- */

static void knock(struct capture *c)
{
	/* It can only fail if it is there to be read already. */
	if (eventfd_write(c->knock, 1) == 0)
		c->knocked = true;
}

static void answer(struct capture *c)
{
	eventfd_t times;

	/* Not only our own knock, but also that of who breaks the loop. */
	if (eventfd_read(c->knock, &times) == 0)
		c->knocked = false;
}

static void wake(struct capture *c)
{
	if (c->sleeps)
		cachelane_sleep_end(&c->borrower);
	c->sleeps = false;
}

/* When a read ends: the program's descriptor says whether the next one would find something. */
static void leave(struct capture *c)
{
	if (c->away && c->knocked)
		answer(c);
	if (!c->selects || c->sleeps || c->away)
		return;
	c->sleeps =
		c->seen == c->count && cachelane_sleep_begin(&c->borrower) == CACHELANE_TIMED_OUT;
	if (c->sleeps && c->knocked)
		answer(c);
	else if (!c->sleeps && !c->knocked)
		knock(c);
}

/* Waits for loans, the lender's end, or a knock. As cachelane_wait. */
static int wait_for_loans(struct capture *c, int timeout_ms)
{
	int there = cachelane_sleep_begin(&c->borrower);
	struct pollfd fds[2] = {
		{.fd = c->borrower.socket, .events = POLLIN | POLLRDHUP},
		{.fd = c->knock, .events = POLLIN},
	};

	if (there != CACHELANE_TIMED_OUT)
		return there;
	c->sleeps = true;
	poll(fds, 2, timeout_ms);
	wake(c);
	return cachelane_wait(&c->borrower, 0);
}

/* ---- Reading ---- */

/* Gives back what the program has seen, but for so many of the last loans. */
static void give_back(struct capture *c, int but)
{
	int until = c->seen - but;

	if (until > c->given) {
		cachelane_give_back(&c->borrower, c->packets + c->given, until - c->given);
		c->given = until;
	}
}

/* How many of the loans from here on are one packet. */
static int parts_of(const struct capture *c, int from)
{
	int at = from;

	while (c->packets[at].flags & CACHELANE_LOAN_MORE && at + 1 < c->count)
		at++;
	return at + 1 - from;
}

/*
 * The first bytes of a packet in one piece; NULL if there is no memory. Who may have one loan only
 * would get no other one while it keeps this.
 */
static const unsigned char *piece(struct capture *c, const struct cachelane_packet *parts, int n,
				  bpf_u_int32 length)
{
	bpf_u_int32 at = 0;

	c->lent = n == 1 && c->borrower.quota > 1;
	if (c->lent)
		return parts[0].data;
	if (!c->whole)
		c->whole = malloc(PCAP_PLUGIN_SNAPLEN_MAX);
	for (int i = 0; i < n && at < length && c->whole; i++) {
		bpf_u_int32 part = parts[i].len < length - at ? parts[i].len : length - at;

		memcpy(c->whole + at, parts[i].data, part);
		at += part;
	}
	return c->whole;
}

/* Hands the next packet over, unless the filter is against it; 1, 0 or an error. */
static int hand_over(pcap_t *p, struct capture *c, pcap_handler handler, u_char *user)
{
	const struct cachelane_packet *parts = &c->packets[c->seen];
	struct bpf_insn *filter = pcap_plugin_get_filter(p);
	bpf_u_int32 snaplen = (bpf_u_int32)pcap_plugin_get_snapshot(p);
	struct pcap_pkthdr header = {.len = 0};
	const unsigned char *bytes;
	bpf_u_int32 there;
	int n = parts_of(c, c->seen);
	uint64_t fraction = parts[0].time % 1000000000u;

	for (int i = 0; i < n; i++)
		header.len += parts[i].len;
	/* A filter looks at all of it, as it does in the kernel. */
	there = header.len < PCAP_PLUGIN_SNAPLEN_MAX ? header.len : PCAP_PLUGIN_SNAPLEN_MAX;
	bytes = piece(c, parts, n, there);
	if (!bytes) {
		pcap_plugin_set_errbuf(p, "no memory for a packet of %u bytes", header.len);
		return PCAP_ERROR;
	}
	c->seen += n;
	if (filter && !pcap_plugin_filter(filter, bytes, header.len, there))
		return 0;
	header.caplen = there < snaplen ? there : snaplen;
	header.ts.tv_sec = (time_t)(parts[0].time / 1000000000u);
	header.ts.tv_usec = (suseconds_t)(c->nanoseconds ? fraction : fraction / 1000);
	c->received++;
	handler(user, &header, bytes);
	return 1;
}

static int lender_failed(pcap_t *p, struct capture *c)
{
	pcap_plugin_set_errbuf(p, "%s: %s", c->place.path, c->borrower.error);
	return PCAP_ERROR;
}

static int watch(struct capture *c, int fd)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};

	return epoll_ctl(c->epoll, EPOLL_CTL_ADD, fd, &event);
}

static void set_timer(struct capture *c, bool on)
{
	struct timespec every = {.tv_nsec = on ? PAUSE_MS * 1000000L : 0};
	struct itimerspec times = {every, every};

	timerfd_settime(c->timer, 0, &times, NULL);
}

/* The lender has ended, or `there` is an error: 1 if it is waited for, or an error. */
static int ended(pcap_t *p, struct capture *c, int there)
{
	/* Those of a lender that was killed, and of one that has evicted us. */
	bool may_pass = there == CACHELANE_CLOSED || errno == ECONNRESET || errno == ETIMEDOUT;

	if (!c->place.reconnects || !may_pass) {
		if (there < 0)
			return lender_failed(p, c);
		pcap_plugin_set_errbuf(p, "%s: the lender has ended", c->place.path);
		return PCAP_ERROR;
	}
	c->dropped += (u_int)cachelane_dropped(&c->borrower);
	/* A child may have it too, and then it would stay. */
	epoll_ctl(c->epoll, EPOLL_CTL_DEL, c->borrower.socket, NULL);
	cachelane_close(&c->borrower);
	c->away = true;
	set_timer(c, true);
	return 1;
}

static int connect_to_lender(struct capture *c, int timeout_ms)
{
	const struct place *place = &c->place;
	struct cachelane_options options = {
		.name = place->name,
		.quota = place->quota,
		.flags = place->mirror ? CACHELANE_HELLO_MIRROR : 0,
		.group = place->group,
		.timeout_ms = timeout_ms,
	};

	return cachelane_connect(&c->borrower, place->path, &options);
}

/* Tries the lender, if it is time: 1 if it is there again, 0, or an error. */
static int come_back(pcap_t *p, struct capture *c)
{
	uint64_t times;

	/* Read whenever it can be: the program may wait for it. */
	if (read(c->timer, &times, sizeof(times)) < 0)
		return 0;
	if (connect_to_lender(c, ANSWER_MS) != 0)
		return cachelane_may_pass(&c->borrower, errno) ? 0 : lender_failed(p, c);
	if (watch(c, c->borrower.socket)) {
		pcap_plugin_set_errbuf(p, "no memory to wait by: %s", strerror(errno));
		cachelane_close(&c->borrower);
		return PCAP_ERROR;
	}
	c->away = false;
	set_timer(c, false);
	return 1;
}

/* Without a lender: as refill. */
static int refill_without(pcap_t *p, struct capture *c, int timeout_ms, bool waits)
{
	struct pollfd fds[2] = {
		{.fd = c->knock, .events = POLLIN},
		{.fd = c->timer, .events = POLLIN},
	};
	int got = come_back(p, c);

	if (got != 0 || !waits)
		return got;
	poll(fds, 2, timeout_ms);
	return 1;
}

/* Receives more loans, and waits for them if it is to: 1, 0 if none came in time, or an error. */
static int refill(pcap_t *p, struct capture *c, int64_t until, bool waits)
{
	int timeout_ms = !waits ? 0 : until ? cachelane_left_ms(until) : -1, there;

	c->seen = c->given = c->count = 0;
	if (c->away)
		return refill_without(p, c, timeout_ms, waits);
	c->count = cachelane_receive(&c->borrower, c->packets, BATCH);
	if (c->count > 0)
		return 1;
	if (c->count < 0) {
		c->count = 0;
		return lender_failed(p, c);
	}
	there = timeout_ms ? wait_for_loans(c, timeout_ms) : cachelane_wait(&c->borrower, 0);
	if (there < 0 || there == CACHELANE_CLOSED)
		return ended(p, c, there);
	/* If it has waited, somebody may have knocked, or a signal come: the caller looks. */
	return there == CACHELANE_READY || waits;
}

/* Whether the program wants to stop. If it has packets of this read, the next one says so. */
static bool breaks(pcap_t *p, struct capture *c, int done)
{
	if (!pcap_plugin_check_break_loop(p))
		return false;
	if (done == 0) {
		answer(c);
		return true;
	}
	pcap_plugin_breakloop(p);
	if (c->selects)
		knock(c);
	return true;
}

static int read_packets(pcap_t *p, struct capture *c, int count, pcap_handler handler, u_char *user,
			bool waits)
{
	int timeout_ms = pcap_plugin_get_timeout(p), done = 0, got;
	int64_t until = timeout_ms > 0 ? cachelane_now_ms() + timeout_ms : 0;
	bool tried = false;

	for (;;) {
		while (c->seen < c->count) {
			if (breaks(p, c, done))
				return done ? done : PCAP_ERROR_BREAK;
			got = hand_over(p, c, handler, user);
			if (got < 0)
				return got;
			done += got;
			if (done == count)
				return done;
		}
		/* A batch, as others have a buffer. */
		if (done > 0)
			return done;
		/* Before the question: who breaks the loop says so, then knocks. */
		answer(c);
		if (breaks(p, c, 0))
			return PCAP_ERROR_BREAK;
		if (tried && (!waits || (until && cachelane_left_ms(until) == 0)))
			return 0;
		give_back(c, 0);
		got = refill(p, c, until, waits);
		if (got <= 0)
			return got;
		tried = true;
	}
}

/* Whether the program may have been told that a read finds something: then it does not wait. */
static bool is_readable(const struct capture *c)
{
	struct pollfd fd = {.fd = c->epoll, .events = POLLIN};

	return c->selects && poll(&fd, 1, 0) > 0;
}

static int lender_read(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	struct capture *c = pcap_plugin_priv(p);
	bool waits = !c->nonblocking && !is_readable(c);
	int done;

	wake(c);
	give_back(c, 0);
	done = read_packets(p, c, count > 0 ? count : -1, handler, user, waits);
	/* One that was asked for alone is valid until the next call. */
	give_back(c, count == 1 && c->lent ? 1 : 0);
	leave(c);
	return done;
}

/* ---- The rest of what programs ask ---- */

static void lender_breakloop(pcap_t *p)
{
	struct capture *c = pcap_plugin_priv(p);

	pcap_plugin_breakloop(p);
	/* The reader may wait. */
	eventfd_write(c->knock, 1);
}

static int lender_setdirection(pcap_t *p, pcap_direction_t direction)
{
	if (direction != PCAP_D_OUT)
		return 0;
	pcap_plugin_set_errbuf(p, "a lender has no sent packets, only received ones");
	return PCAP_ERROR;
}

static int lender_inject(pcap_t *p, const void *packet, int size)
{
	(void)packet;
	(void)size;
	pcap_plugin_set_errbuf(p, "a lender's packets can only be read; nothing can be sent");
	return PCAP_ERROR;
}

static int lender_getnonblock(pcap_t *p)
{
	return ((struct capture *)pcap_plugin_priv(p))->nonblocking;
}

static int lender_setnonblock(pcap_t *p, int nonblock)
{
	struct capture *c = pcap_plugin_priv(p);

	c->nonblocking = nonblock;
	return 0;
}

static int lender_stats(pcap_t *p, struct pcap_stat *stats)
{
	struct capture *c = pcap_plugin_priv(p);

	stats->ps_recv = c->received;
	stats->ps_drop = c->dropped + (u_int)cachelane_dropped(&c->borrower);
	stats->ps_ifdrop = 0;
	return 0;
}

static void lender_cleanup(pcap_t *p)
{
	struct capture *c = pcap_plugin_priv(p);

	cachelane_close(&c->borrower);
	if (c->knock >= 0)
		close(c->knock);
	if (c->epoll >= 0)
		close(c->epoll);
	if (c->timer >= 0)
		close(c->timer);
	free(c->whole);
	c->whole = NULL;
	c->knock = c->epoll = c->timer = -1;
	pcap_plugin_cleanup_live(p);
}

void lender_selects(pcap_t *p, int selects)
{
	struct capture *c = pcap_plugin_priv(p);

	if (c->selects == !!selects)
		return;
	c->selects = selects;
	leave(c);
}

/* ---- Opening ---- */

static int open_lender(pcap_t *p, struct capture *c)
{
	const char *hint = "";

	if (connect_to_lender(c, 0) == 0)
		return 0;
	c->away = c->place.reconnects && cachelane_may_pass(&c->borrower, errno);
	if (c->away)
		return 0;
	if (c->borrower.status == CACHELANE_MIRROR || c->borrower.status == CACHELANE_DENIED)
		hint = "; a share of the flows: " PREFIX "PATH,share";
	pcap_plugin_set_errbuf(p, "%.200s%s", c->borrower.error, c->place.mirror ? hint : "");
	return errno == ENOENT || errno == ECONNREFUSED ? PCAP_ERROR_NO_SUCH_DEVICE
	       : errno == EACCES			? PCAP_ERROR_PERM_DENIED
							: PCAP_ERROR;
}

static int lender_activate(pcap_t *p)
{
	static const struct pcap_plugin_ops ops = {
		.read = lender_read,
		.inject = lender_inject,
		.setfilter = pcap_plugin_install_bpf,
		.setdirection = lender_setdirection,
		.getnonblock = lender_getnonblock,
		.setnonblock = lender_setnonblock,
		.stats = lender_stats,
		.cleanup = lender_cleanup,
		.breakloop_func = lender_breakloop,
	};
	struct capture *c = pcap_plugin_priv(p);
	int snaplen = pcap_plugin_get_snapshot(p), result;

	c->knock = c->epoll = c->timer = -1;
	result = parse_device(p, &c->place);
	if (result == 0)
		result = open_lender(p, c);
	if (result != 0)
		return result;
	c->nanoseconds = pcap_plugin_get_tstamp_precision(p) == PCAP_TSTAMP_PRECISION_NANO;
	c->knock = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->epoll = epoll_create1(EPOLL_CLOEXEC);
	c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (c->knock < 0 || c->epoll < 0 || c->timer < 0 || watch(c, c->knock) ||
	    watch(c, c->timer) || (!c->away && watch(c, c->borrower.socket))) {
		pcap_plugin_set_errbuf(p, "no descriptors to wait by: %s", strerror(errno));
		lender_cleanup(p);
		return PCAP_ERROR;
	}
	if (snaplen <= 0 || snaplen > PCAP_PLUGIN_SNAPLEN_MAX)
		pcap_plugin_set_snapshot(p, PCAP_PLUGIN_SNAPLEN_MAX);
	pcap_plugin_set_linktype(p, DLT_EN10MB);
	pcap_plugin_set_selectable_fd(p, c->epoll);
	pcap_plugin_set_ops(p, &ops);
	c->selects = true;
	if (c->away)
		set_timer(c, true);
	leave(c);
	return 0;
}

static pcap_t *lender_create(const char *device, char *errbuf, int *is_ours)
{
	static const int types[] = {PCAP_TSTAMP_HOST};
	static const int precisions[] = {PCAP_TSTAMP_PRECISION_MICRO, PCAP_TSTAMP_PRECISION_NANO};
	pcap_t *p;

	*is_ours = is_lenders(device);
	if (!*is_ours)
		return NULL;
	p = pcap_plugin_create_handle(errbuf, sizeof(struct capture));
	if (!p)
		return NULL;
	pcap_plugin_set_tstamp_type_list(p, types, 1);
	pcap_plugin_set_tstamp_precision_list(p, precisions, 2);
	pcap_plugin_set_activate(p, lender_activate);
	return p;
}

EXPORT const struct pcap_plugin pcap_plugin_entry = {
	.abi_version = PCAP_PLUGIN_ABI_VERSION,
	.name = "cachelane",
	.findalldevs = lender_findalldevs,
	.create = lender_create,
};

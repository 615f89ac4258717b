/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A program with libpcap that reads in each of the ways that libpcap has, and tells what it read.
 *
 *	reader DEVICE WAY [COUNT [FILTER]]
 *
 * A line for each packet: its seconds and nanoseconds, its bytes, those of them that are there, and
 * their sum; at the end `stats RECEIVED DROPPED`, and what the last call answered.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pcap/pcap.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pcap_t *handle;
static char errbuf[PCAP_ERRBUF_SIZE];

static void fail(const char *what, const char *why)
{
	printf("%s: %s\n", what, why);
	exit(1);
}

static unsigned long sum(const u_char *bytes, bpf_u_int32 length)
{
	unsigned long sum = 0;

	for (bpf_u_int32 at = 0; at < length; at++)
		sum = sum * 31 + bytes[at];
	return sum;
}

static void tell(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
	(void)user;
	printf("%ld.%09ld %u %u %lu\n", (long)header->ts.tv_sec, (long)header->ts.tv_usec,
	       header->len, header->caplen, sum(bytes, header->caplen));
	fflush(stdout);
}

static void await_line(void)
{
	char line[16];

	if (!fgets(line, sizeof(line), stdin))
		fail("stdin", "no line");
}

/* Each packet stays until the next call, also while this program waits for a line. */
static int next(int count)
{
	struct pcap_pkthdr *header;
	const u_char *bytes;
	int got = 0;

	while (count > 0 && (got = pcap_next_ex(handle, &header, &bytes)) >= 0) {
		if (got == 0)
			continue;
		unsigned long before = sum(bytes, header->caplen);

		count--;
		tell(NULL, header, bytes);
		await_line();
		if (sum(bytes, header->caplen) != before)
			fail("a packet", "changed while it was held");
	}
	return got;
}

static int readable(int fd)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};

	return poll(&wait, 1, 20000) == 1 && wait.revents == POLLIN;
}

/* Waits by the descriptor, then takes so many at a time. */
static int by_descriptor(int count, int at_a_time)
{
	int fd = pcap_get_selectable_fd(handle), got = 0;

	if (fd < 0)
		fail("descriptor", "none");
	while (count > 0) {
		if (!readable(fd))
			fail("descriptor", "not readable in time");
		got = pcap_dispatch(handle, at_a_time, tell, NULL);
		if (got < 0)
			return got;
		count -= got;
	}
	/* If it is readable now, a read does not wait all the same. */
	struct pollfd wait = {.fd = fd, .events = POLLIN};

	if (poll(&wait, 1, 100) == 1 && pcap_dispatch(handle, at_a_time, tell, NULL) != 0)
		fail("descriptor", "readable, and a packet too many");
	return got;
}

/* The handler wants to stop at its first packet. */
static void tell_and_break(u_char *user, const struct pcap_pkthdr *header, const u_char *bytes)
{
	tell(user, header, bytes);
	pcap_breakloop(handle);
}

static void on_signal(int signal)
{
	(void)signal;
	pcap_breakloop(handle);
}

static void *breaks(void *unused)
{
	await_line();
	pcap_breakloop(handle);
	return unused;
}

static int read_by(const char *way, int count)
{
	struct sigaction action = {.sa_handler = on_signal};
	pthread_t thread;
	int nonblock = !strcmp(way, "poll");

	if (pcap_setnonblock(handle, nonblock, errbuf) ||
	    pcap_getnonblock(handle, errbuf) != nonblock)
		fail("setnonblock", errbuf);
	if (!strcmp(way, "loop"))
		return pcap_loop(handle, count, tell, NULL);
	if (!strcmp(way, "next"))
		return next(count);
	if (!strcmp(way, "poll"))
		return by_descriptor(count, -1);
	if (!strcmp(way, "poll-one"))
		return by_descriptor(count, 1);
	if (!strcmp(way, "handler")) {
		if (pcap_dispatch(handle, -1, tell_and_break, NULL) != 1)
			fail("dispatch", "not the one packet that it handed over");
		return pcap_dispatch(handle, -1, tell, NULL);
	}
	if (!strcmp(way, "timeout"))
		return pcap_dispatch(handle, -1, tell, NULL);
	if (!strcmp(way, "signal"))
		sigaction(SIGUSR1, &action, NULL);
	else if (!strcmp(way, "thread"))
		pthread_create(&thread, NULL, breaks, NULL);
	else
		fail(way, "no such way");
	puts("reads");
	fflush(stdout);
	return pcap_loop(handle, -1, tell, NULL);
}

static void open_handle(const char *device, int timeout)
{
	int status;

	handle = pcap_create(device, errbuf);
	if (!handle)
		fail("create", errbuf);
	/* Only what is open can be read. */
	if (pcap_dispatch(handle, 1, tell, NULL) != PCAP_ERROR_NOT_ACTIVATED ||
	    pcap_datalink(handle) != PCAP_ERROR_NOT_ACTIVATED ||
	    pcap_snapshot(handle) != PCAP_ERROR_NOT_ACTIVATED)
		fail("dispatch", "a handle that is not open was read");
	if (pcap_setnonblock(handle, 1, errbuf))
		fail("setnonblock", "not before it is open");
	if (pcap_set_snaplen(handle, 2000) || pcap_set_timeout(handle, timeout) ||
	    pcap_set_promisc(handle, 1) || pcap_set_buffer_size(handle, 1 << 20) ||
	    pcap_set_immediate_mode(handle, 1) ||
	    pcap_set_tstamp_precision(handle, PCAP_TSTAMP_PRECISION_NANO))
		fail("set", pcap_geterr(handle));
	status = pcap_activate(handle);
	if (status < 0)
		fail(pcap_statustostr(status), pcap_geterr(handle));
	if (pcap_getnonblock(handle, errbuf) != 1)
		fail("setnonblock", "forgotten when it was opened");
	if (pcap_setfilter(handle, NULL) != PCAP_ERROR)
		fail("setfilter", "none is one");
	if (pcap_set_snaplen(handle, 100) != PCAP_ERROR_ACTIVATED)
		fail("set_snaplen", "an open handle was changed");
	if (pcap_snapshot(handle) != 2000 || pcap_datalink(handle) != DLT_EN10MB ||
	    pcap_get_tstamp_precision(handle) != PCAP_TSTAMP_PRECISION_NANO)
		fail("open", "not as it was set");
	if (pcap_sendpacket(handle, (const u_char *)"x", 1) != PCAP_ERROR)
		fail("sendpacket", "something was sent");
	if (pcap_setdirection(handle, PCAP_D_OUT) != PCAP_ERROR ||
	    pcap_setdirection(handle, PCAP_D_IN))
		fail("setdirection", "only received packets are there");
}

int main(int argc, char **argv)
{
	struct bpf_program program;
	struct pcap_stat stats;
	int count, got;

	if (argc < 3)
		return 2;
	count = argc > 3 ? atoi(argv[3]) : 1;
	open_handle(argv[1], !strcmp(argv[2], "timeout") ? 50 : 0);
	if (argc > 4 && (pcap_compile(handle, &program, argv[4], 1, PCAP_NETMASK_UNKNOWN) ||
			 pcap_setfilter(handle, &program)))
		fail("filter", pcap_geterr(handle));
	if (argc > 4)
		pcap_freecode(&program);
	got = read_by(argv[2], count);
	if (pcap_stats(handle, &stats))
		fail("stats", pcap_geterr(handle));
	printf("stats %u %u\n%d %s\n", stats.ps_recv, stats.ps_drop, got,
	       got == PCAP_ERROR ? pcap_geterr(handle) : "");
	pcap_close(handle);
	return 0;
}

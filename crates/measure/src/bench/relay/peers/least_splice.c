/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The least program that relays by splice(2): two threads for each connection, one for each
 * direction, that block in splice; no event loop, no limits, no timeouts, no second connection
 * attempt. What a relay has to pay at least on this host.
 *
 *   least_splice LISTEN_ADDR LISTEN_PORT TO_ADDR TO_PORT PIPE_BYTES
 *
 * It says "ready" when it listens, and ends at the end of its input.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct sockaddr_in target;
static int pipe_bytes;

struct direction {
	int from;
	int to;
};

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static struct sockaddr_in address(const char *ip, const char *port)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};

	if (inet_pton(AF_INET, ip, &addr.sin_addr) != 1) {
		errno = EINVAL;
		fail(ip);
	}
	return addr;
}

static void *forward(void *arg)
{
	struct direction way = *(struct direction *)arg;
	int ends[2] = {-1, -1};
	ssize_t held = 0;

	free(arg);
	if (pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, pipe_bytes) > 0) {
		while ((held = splice(way.from, NULL, ends[1], NULL, pipe_bytes, SPLICE_F_MOVE)) >
		       0) {
			while (held > 0) {
				ssize_t sent =
					splice(ends[0], NULL, way.to, NULL, held, SPLICE_F_MOVE);

				if (sent <= 0)
					goto out;
				held -= sent;
			}
		}
	}
out:
	/* The other direction ends too: nobody tests this program for half-closed connections. */
	shutdown(way.from, SHUT_RDWR);
	shutdown(way.to, SHUT_RDWR);
	close(ends[0]);
	close(ends[1]);
	close(way.from);
	close(way.to);
	return NULL;
}

static void start(int from, int to)
{
	struct direction *way = malloc(sizeof(*way));
	pthread_t thread;

	if (!way)
		fail("malloc");
	way->from = from;
	way->to = to;
	if (pthread_create(&thread, NULL, forward, way) != 0)
		fail("pthread_create");
	pthread_detach(thread);
}

static void *serve(void *arg)
{
	int listener = *(int *)arg;

	for (;;) {
		int one = 1, client_too, server_too, client = accept(listener, NULL, NULL);
		int server = socket(AF_INET, SOCK_STREAM, 0);

		if (client < 0 || server < 0)
			fail("accept");
		setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		if (connect(server, (struct sockaddr *)&target, sizeof(target)) != 0) {
			close(client);
			close(server);
			continue;
		}
		/* Each direction owns its two descriptors. */
		client_too = dup(client);
		server_too = dup(server);
		if (client_too < 0 || server_too < 0)
			fail("dup");
		start(client, server);
		start(server_too, client_too);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in own;
	pthread_t thread;

	if (argc != 6) {
		fprintf(stderr,
			"least_splice LISTEN_ADDR LISTEN_PORT TO_ADDR TO_PORT PIPE_BYTES\n");
		return 2;
	}
	own = address(argv[1], argv[2]);
	target = address(argv[3], argv[4]);
	pipe_bytes = atoi(argv[5]);
	signal(SIGPIPE, SIG_IGN);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&own, sizeof(own)) != 0 || listen(listener, 64) != 0)
		fail("listen");
	if (pthread_create(&thread, NULL, serve, &listener) != 0)
		fail("pthread_create");
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}

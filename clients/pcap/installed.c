/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Finds the libpcap that is installed, behind this one. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "stand_in.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

static void *library;

/* A library, unless it is this one. */
static void *open_library(const char *name)
{
	void *opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (opened && dlsym(opened, "pcap_create") != (void *)pcap_create &&
	    dlsym(opened, "pcap_open_dead"))
		return opened;
	if (opened)
		dlclose(opened);
	return NULL;
}

/* One in a folder that the loader looks in. */
static void *open_in_folders(const char *name)
{
	void *self = dlopen(NULL, RTLD_NOW), *opened = NULL;
	char path[PATH_MAX];
	Dl_serinfo size, *folders;

	if (!self || dlinfo(self, RTLD_DI_SERINFOSIZE, &size))
		return NULL;
	folders = malloc(size.dls_size);
	if (!folders)
		return NULL;
	/* Says again how long it is, as dlinfo(3) wants it. */
	*folders = size;
	if (dlinfo(self, RTLD_DI_SERINFO, folders) == 0)
		for (unsigned at = 0; at < folders->dls_cnt && !opened; at++) {
			snprintf(path, sizeof(path), "%s/%s", folders->dls_serpath[at].dls_name,
				 name);
			opened = open_library(path);
		}
	free(folders);
	return opened;
}

static void *find_library(void)
{
	/* As Debian calls it, and as others do. */
	static const char *const names[] = {"libpcap.so.0.8", "libpcap.so.1"};
	const char *set = getenv("CACHELANE_LIBPCAP");
	void *opened = NULL;

	if (set)
		return open_library(set);
	/* The program has one, behind this one. */
	if (dlsym(RTLD_NEXT, "pcap_open_dead"))
		return RTLD_NEXT;
	for (int at = 0; at < 2 && !opened; at++)
		opened = open_library(names[at]);
	for (int at = 0; at < 2 && !opened; at++)
		opened = open_in_folders(names[at]);
	return opened;
}

void *installed(const char *name)
{
	void *found = __atomic_load_n(&library, __ATOMIC_ACQUIRE);

	if (!found) {
		/* Two threads find the same. */
		found = find_library();
		__atomic_store_n(&library, found, __ATOMIC_RELEASE);
	}
	if (!found) {
		static const char text[] =
			"cachelane: no libpcap is installed beside this one (expected "
			"libpcap.so.0.8 or libpcap.so.1, or its path in CACHELANE_LIBPCAP)\n";

		fputs(text, stderr);
		abort();
	}
	return dlsym(found, name);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/* What the packet path and the process that feeds it share. The Rust types are generated. */
#ifndef CACHELANE_BRIDGE_H
#define CACHELANE_BRIDGE_H

/* Why a packet was left to the kernel path; the index of its counter. The process names them
 * (counters.rs). */
enum reason {
	REASON_OFF,	    /* the fast path is off, by knob or for the whole bridge */
	REASON_LEASE,	    /* the process has not looked at the host for too long */
	REASON_SHORT,	    /* no Ethernet header within the linear part */
	REASON_VLAN,	    /* carries a VLAN tag that the kernel has to deal with */
	REASON_GROUP,	    /* to a multicast, broadcast or reserved address */
	REASON_PROTOCOL,    /* a protocol that the kernel has to look at on this bridge */
	REASON_UNKNOWN_DST, /* the destination is not in the table, or is the bridge's own */
	REASON_UNKNOWN_SRC, /* the source is not in the table, or is nobody's address */
	REASON_MOVED,	    /* the source is known on another port */
	REASON_UNSETTLED,   /* source or destination is new, or has moved, a moment ago */
	REASON_SAME_PORT,   /* the destination is on the port that it came from */
	REASON_PORT_IN,	    /* nothing may be taken from the port that it came from */
	REASON_PORT_OUT,    /* nothing may be sent to the destination's port */
	REASON_ISOLATED,    /* both ports are isolated */
	REASON_NOT_MEMBER,  /* its VLAN does not forward on both ports, or it is in none */
	REASON_TOO_LONG,    /* longer than the destination's port or its peer takes */
	REASON_RULES,	    /* a rule of netfilter's that the process has not looked at yet */
	REASON_REFRESH,	    /* keeps the kernel's own entry fresh, where no copy can */
	REASONS,
	FORWARD = REASONS, /* no reason: the fast path takes it */
};

/* What the table says of a station. The packet path reads it, as a whole, and writes nothing in
 * it, but for `unsettled`, when the station is seen on another port. */
struct station {
	__u32 place; /* from bit 0 its port's slot in `ports`, then STATION_*, then its own slot */
	__u32 unsettled; /* not 0: the kernel path; grows when it is seen on another port */
};
_Static_assert(sizeof(struct station) == 8, "struct station has padding");

/* A cache line of the table. A station's key stands in the bucket that its hash gives or, where
 * that is full, in one of the seven beside it. */
struct bucket {
	__u64 keys[4]; /* an address's bytes, and the VLAN, in the order of memory; 0: nobody */
	struct station stations[4];
};
_Static_assert(sizeof(struct bucket) == 64, "a bucket is a cache line");

enum fixed {
	BUCKET_STATIONS = 4, /* in a bucket */
	BUCKETS_TRIED = 8,   /* for a station, from that of its hash on */
	INLET_BUCKETS = 1024,
	INLETS_IN_BUCKET = 4,
	VLAN_SETS = 64, /* of 64 VLANs each */
};

enum station_bit {
	STATION_PORT_MASK = 1023,
	STATION_AGELESS = 1 << 10, /* the kernel does not forget it: nothing to refresh */
	STATION_FIXED = 1 << 11,   /* the kernel would not move it to another port */
	STATION_SLOT_SHIFT = 12,   /* its slot in `stamps` and `shared_stamps` */
};

enum edit {
	EDIT_WRITE,  /* writes the station, wherever there is room; 0: there is none */
	EDIT_REMOVE, /* 0: it is not there */
	EDIT_READ,   /* 0: it is not there */
	EDIT_SETTLE, /* if it is as unsettled as the request says; 0: it is not */
};

/* What the process asks of the program `edit`, which alone writes the table's keys: one request at
 * a time. */
struct request {
	__u64 key;
	struct station station; /* what to write; what is there */
	enum edit edit;
	__u32 reserved;
};
_Static_assert(sizeof(struct request) == 24, "struct request has padding");

/* What the process asks of the program `renew`, which alone writes until when the packet path
 * believes what the process has written. */
struct renewal {
	__u64 from;   /* when the process began to look, in jiffies */
	__u64 length; /* for so many jiffies from then on; 0: says in `from` what time it is */
};
_Static_assert(sizeof(struct renewal) == 16, "struct renewal has padding");

/* When a station was last seen as the source, in jiffies modulo 2^32: by one CPU or, in
 * `shared_stamps`, by any. */
struct stamp {
	__u32 seen;	 /* any packet */
	__u32 refreshed; /* a packet or a copy left to the kernel to keep its entry fresh */
};
_Static_assert(sizeof(struct stamp) == 8, "struct stamp has padding");

struct port {
	__u32 index;	    /* ifindex; 0: nothing here */
	__u32 flags;	    /* PORT_* */
	__u32 max_len;	    /* longest frame that is not GSO, with its Ethernet header, in bytes */
	__u32 gso_max_segs; /* packets that a GSO packet may come to */
	__u64 peer_key;	    /* the key of the peer device's address; 0: none */
	__u32 gso_max_size; /* a GSO packet has to be shorter, with its Ethernet header ... */
	__u32 gso_ipv4_max_size; /* ... and than this if it is not IPv6 */
	__u64 device;		 /* where its struct net_device is; 0: nothing is sent to it */
};
_Static_assert(sizeof(struct port) == 40, "struct port has padding");

/* A port on the way in, by its interface index, where the bridge looks at VLANs. */
struct inlet {
	__u32 index; /* 0: nothing here */
	__u32 pvid;  /* the VLAN of frames without a tag; 0: they are in none, and dropped */
};
_Static_assert(sizeof(struct inlet) == 8, "struct inlet has padding");

/* The ports whose interface indexes leave the same remainder. */
struct inlet_bucket {
	struct inlet inlets[INLETS_IN_BUCKET];
};
_Static_assert(sizeof(struct inlet_bucket) == 32, "struct inlet_bucket has padding");

/* 64 VLANs of a port, a bit for each. */
struct vlan_set {
	__u64 forwarding; /* the port is in it, and it forwards */
	__u64 untagged;	  /* its frames leave without a tag */
};
_Static_assert(sizeof(struct vlan_set) == 16, "struct vlan_set has padding");

/* The VLANs of a port, by its slot. */
struct vlans {
	struct vlan_set sets[VLAN_SETS];
};
_Static_assert(sizeof(struct vlans) == 1024, "struct vlans has padding");

enum port_flag {
	PORT_IN = 1,	   /* packets may be taken from it */
	PORT_OUT = 2,	   /* packets may be sent to it */
	PORT_STRAIGHT = 4, /* packets for the peer's own address may skip its queue */
	PORT_ISOLATED = 8,
	PORT_REFRESH = 16, /* the kernel learns from what it receives, and has to go on doing so */
	PORT_COPY = 32, /* a copy does for that: the packet itself need not take the kernel path */
	PORT_UNSEEN = 64, /* nothing of what it receives gets here: for other processes to read */
};

/* Read for each packet, written by the process. */
struct settings {
	__u32 active;	     /* 0: everything takes the kernel path */
	__u32 shared;	     /* 1: stamps beside the entries */
	__u32 refresh_every; /* jiffies after which an entry has to be refreshed */
	__u32 copy_every;    /* jiffies after which it is, where a copy does and there is time */
	__u32 copies;	     /* that a CPU makes in a jiffy, at most, of those that can wait */
	__u32 kernel_ethertypes; /* KERNEL_*: left to the kernel path */
	__u32 arrivals;		 /* 1: there are ports in `arrivals` */
	__u32 vlan_protocol; /* of the tags that it goes by, in network order; 0: it looks at none
			      */
};
_Static_assert(sizeof(struct settings) == 32, "struct settings has padding");

enum kernel_ethertype {
	KERNEL_IPV4 = 1,
	KERNEL_IPV6 = 2,
	KERNEL_ARP = 4,
	KERNEL_PPPOE = 8,
	KERNEL_ND = 16, /* ICMPv6, as the bridge itself tells it: right behind the IPv6 header */
};

/* Netfilter's hooks that a forwarded frame meets, and the settings of br_netfilter. */
#define BRIDGE_HOOKS 3
#define CALLS	     3

#define CALLS_IPTABLES	0
#define CALLS_IP6TABLES 1
#define CALLS_ARPTABLES 2

/* How the rules were when the process decided that they leave bridged packets alone; as addresses
 * in the kernel. No hooks have an address of all ones: all takes the kernel path. */
struct rules {
	__u64 hooks[BRIDGE_HOOKS]; /* struct nf_hook_entries; 0: none */
	__u64 calls[CALLS];	   /* integers; 0: there is no br_netfilter */
	__u32 numbers[BRIDGE_HOOKS];
	__u32 reserved;
};
_Static_assert(sizeof(struct rules) == 64, "struct rules is a cache line");

/* What the program `observe` is asked, and what it answers. */
struct observation {
	struct rules rules;
	__u64 device;	  /* where the device with this index is; 0: not there */
	__u32 index;	  /* 0: none */
	__u32 fds[CALLS]; /* the open files of br_netfilter's sysctls; 0: there is none */
};
_Static_assert(sizeof(struct observation) == 88, "struct observation has padding");

/* Whose bridge a loaded program is for, for other processes to find among its constants. */
struct owner {
	__u64 magic;  /* OWNER_MAGIC (program.rs) */
	__u64 netns;  /* the inode of the network namespace */
	__u64 pidns;  /* the inode of the namespace that the pid is of */
	__u32 bridge; /* the bridge's ifindex; 0: none */
	__u32 pid;
};
_Static_assert(sizeof(struct owner) == 32, "struct owner has padding");

/* One CPU's counts. */
struct counts {
	__u64 straight;	  /* packets sent straight into the peer's namespace */
	__u64 redirected; /* packets sent by the port's own queue */
	__u64 bytes;	  /* of both */
	__u64 copies;	  /* of packets, made to keep the kernel's entries fresh */
	__u32 jiffy;	  /* when the last copy was made that could have waited */
	__u32 in_jiffy;	  /* how many such in that jiffy */
	__u64 kernel[REASONS];
};

#endif

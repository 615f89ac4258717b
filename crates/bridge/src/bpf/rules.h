/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a rule stands in a frame's way that the process does not know of yet, read from the
 * kernel's own structs for each packet: the process hears of a rule after it holds, and later
 * still where it waits for a CPU.
 *
 * Read are netfilter's hooks of the bridge family, those on the ingress of the port that the frame
 * came from and on the egress of the one that it goes to, and the settings of br_netfilter. A chain
 * is hooked in before its first rule holds, so a rule cannot be missed.
 *
 * br_netfilter hooks in for itself. So the bridge family's hooks are compared with what they were
 * when the process last found nobody else among them: the array's address, as each change makes a
 * new array, and the number of hooks in it, as an address may be used again.
 */
#ifndef CACHELANE_RULES_H
#define CACHELANE_RULES_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/magic.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "bridge.h"

/* Only what is read of the kernel's structs; the offsets are relocated at load. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct nf_hook_entries {
	__u16 num_hook_entries;
};

struct netns_nf {
	struct nf_hook_entries *hooks_bridge[5];
};

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct net {
	struct netns_nf nf;
	struct hlist_head *dev_index_head;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct vlan_group {
	unsigned int nr_vlan_devs;
};

struct vlan_info {
	struct vlan_group grp;
};

struct net_device {
	int ifindex;
	struct vlan_info *vlan_info;
	struct hlist_node index_hlist;
	possible_net_t nd_net;
	struct nf_hook_entries *nf_hooks_ingress;
	struct nf_hook_entries *nf_hooks_egress;
};

struct sk_buff {
	struct net_device *dev;
};

typedef struct {
	int counter;
} atomic_t;

/* Stands for any integer that has an address. */
struct refcount_struct {
	atomic_t refs;
};

struct nsproxy {
	struct net *net_ns;
};

struct super_block {
	unsigned long s_magic;
};

struct inode {
	struct super_block *i_sb;
};

struct ctl_table {
	void *data;
};

struct proc_inode {
	const struct ctl_table *sysctl_entry;
	struct inode vfs_inode;
};

struct file {
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct {
	struct nsproxy *nsproxy;
	struct files_struct *files;
};

#pragma clang attribute pop

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym;
extern void *bpf_rdonly_cast(const void *address, __u32 type) __ksym;

/* What a forwarded frame meets: NF_BR_PRE_ROUTING, NF_BR_FORWARD, NF_BR_POST_ROUTING. */
#define HOOK_OF(n) (2 * (n))

/* 0: the kernel lets us read nothing of its own; the rules are the process's to follow then. */
const volatile __u32 reads_rules = 1;

/* Written by the process, as a whole: alone in its section, and so in its map. */
struct rules rules SEC(".data.rules") = {};

static __always_inline int has_bridge_hooks(struct net *net)
{
	if (!bpf_core_field_exists(net->nf.hooks_bridge))
		return 0;
#pragma unroll
	for (int i = 0; i < BRIDGE_HOOKS; i++) {
		struct nf_hook_entries *hooks = net->nf.hooks_bridge[HOOK_OF(i)];

		if ((__u64)hooks != rules.hooks[i])
			return 1;
		if (hooks && hooks->num_hook_entries != rules.numbers[i])
			return 1;
	}
	return 0;
}

/* Whether br_netfilter hands frames to these tables; none where it is not there. */
static __always_inline int calls(__u32 tables)
{
	const void *address = (const void *)rules.calls[tables];
	struct refcount_struct *on;

	if (!address)
		return 0;
	on = bpf_rdonly_cast(address, bpf_core_type_id_kernel(struct refcount_struct));
	return on->refs.counter;
}

static __always_inline int is_called_for(__u16 protocol)
{
	switch (protocol) {
	case bpf_htons(ETH_P_IP):
		return calls(CALLS_IPTABLES);
	case bpf_htons(ETH_P_IPV6):
		return calls(CALLS_IP6TABLES);
	case bpf_htons(ETH_P_ARP):
	case bpf_htons(ETH_P_RARP):
		return calls(CALLS_ARPTABLES);
	case bpf_htons(ETH_P_PPP_SES):
		return calls(CALLS_IPTABLES) || calls(CALLS_IP6TABLES);
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD):
		/* It may look behind the tag. */
		return calls(CALLS_IPTABLES) || calls(CALLS_IP6TABLES) || calls(CALLS_ARPTABLES);
	default:
		return 0;
	}
}

/* Whether a VLAN device above its port may take a frame with a tag before the bridge gets it. */
static __always_inline int is_for_vlan_device(struct __sk_buff *skb)
{
	const struct net_device *in;

	if (!reads_rules)
		return 1;
	in = ((struct sk_buff *)bpf_cast_to_kern_ctx(skb))->dev;
	if (!bpf_core_field_exists(in->vlan_info))
		return 0;
	return in->vlan_info && in->vlan_info->grp.nr_vlan_devs;
}

/* Whether a rule that the process does not know of stands in the frame's way. */
static __always_inline int is_ruled(struct __sk_buff *skb, const struct port *out, __u16 protocol)
{
	struct net_device *in, *to;

	if (!reads_rules)
		return 0;
	in = ((struct sk_buff *)bpf_cast_to_kern_ctx(skb))->dev;
	if (bpf_core_field_exists(in->nf_hooks_ingress) && in->nf_hooks_ingress)
		return 1;
	if (has_bridge_hooks(in->nd_net.net))
		return 1;
	if (!out->device)
		return 1;
	to = bpf_rdonly_cast((const void *)out->device, bpf_core_type_id_kernel(struct net_device));
	if (bpf_core_field_exists(to->nf_hooks_egress) && to->nf_hooks_egress)
		return 1;
	return is_called_for(protocol);
}

/* A walk along one chain of the kernel's table of devices. */
struct walk {
	struct hlist_node *node;
	__u64 found;
	__u32 index;
};

/* 1: the walk is over. */
static long look_at_device(__u32 step, struct walk *walk)
{
	struct hlist_node *node = walk->node;
	struct net_device *device =
		(void *)node - bpf_core_field_offset(struct net_device, index_hlist);

	if (!node)
		return 1;
	if ((__u32)BPF_CORE_READ(device, ifindex) == walk->index) {
		walk->found = (__u64)device;
		return 1;
	}
	walk->node = BPF_CORE_READ(node, next);
	return 0;
}

/* The device with this index, as the kernel's own table of indexes has it; 0 if it is not there. */
static __always_inline __u64 device_of(struct net *net, __u32 index)
{
	struct walk walk = {.index = index};
	struct hlist_head *table;

	if (!bpf_core_field_exists(net->dev_index_head))
		return 0;
	/* NETDEV_HASHENTRIES of them. */
	table = BPF_CORE_READ(net, dev_index_head) + index % 256;
	/* Not in a loop of ours, of which the verifier would look at every turn. */
	bpf_rcu_read_lock();
	walk.node = BPF_CORE_READ(table, first);
	bpf_loop(4096, look_at_device, &walk, 0);
	bpf_rcu_read_unlock();
	return walk.found;
}

/* Where the integer is that a sysctl's open file shows. */
static __always_inline __u64 sysctl_of(struct task_struct *task, __u32 fd)
{
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file *file = NULL;
	struct inode *inode;
	struct proc_inode *proc;

	if (fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + fd);
	inode = BPF_CORE_READ(file, f_inode);
	if (BPF_CORE_READ(inode, i_sb, s_magic) != PROC_SUPER_MAGIC)
		return 0;
	proc = (void *)inode - bpf_core_field_offset(struct proc_inode, vfs_inode);
	return (__u64)BPF_CORE_READ(proc, sysctl_entry, data);
}

/* Run by the process: how the rules of its network namespace are now. */
SEC("syscall")
int observe(struct observation *now)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct net *net = BPF_CORE_READ(task, nsproxy, net_ns);

	if (bpf_core_field_exists(net->nf.hooks_bridge)) {
#pragma unroll
		for (int i = 0; i < BRIDGE_HOOKS; i++) {
			struct nf_hook_entries *hooks =
				BPF_CORE_READ(net, nf.hooks_bridge[HOOK_OF(i)]);

			now->rules.hooks[i] = (__u64)hooks;
			now->rules.numbers[i] = hooks ? BPF_CORE_READ(hooks, num_hook_entries) : 0;
		}
	}
#pragma unroll
	for (int i = 0; i < CALLS; i++)
		now->rules.calls[i] = now->fds[i] ? sysctl_of(task, now->fds[i]) : 0;
	now->device = now->index ? device_of(net, now->index) : 0;
	return 1;
}

#endif

//! The kernel: its version, its configuration, lockdown.

use super::table;
use super::words::again;
use crate::{Facts, Found, Kernel, Release, XskAnswer};

/// The oldest kernel for all mechanisms: tcx links.
const OLDEST: Release = Kernel::OLDEST;

/// What kernels after the oldest bring, and what it is for.
const NEWER: [(Release, &str); 4] = [
    (Release(6, 8), "the queues of each NAPI instance by netlink, which steer checks"),
    (Release(6, 15), "GRO of packets that were sent to another CPU (cpumap), which steer gains by"),
    (Release(6, 17), "more than 32 packets in a send call of AF_XDP's copy mode"),
    (Release(6, 19), "deferred freeing of sent buffers too, not only of received ones"),
];

/// A tick of this length or less no longer bounds a sockmap.
const FAST_TICK: u64 = 1000;

table! { Kernel:
    "CL037" Problem too_old ["bridge" "steer" "xsk" "lend" "relay"]
        "The kernel is older than cachelane needs"
        costs "only the relay works, without its sockmap engine";
    "CL038" Info newer_brings ["steer" "xsk" "frames"]
        "A newer kernel would bring more"
        costs "what it would bring is done without, or costs more";
    "CL039" Problem locked_down ["bridge" "steer"]
        "Lockdown keeps BPF programs from reading the kernel's memory"
        costs "the fast path of a bridge and steering cannot be loaded";
    "CL040" Problem no_btf ["bridge" "steer" "relay"]
        "The kernel does not describe its types (BTF)"
        costs "BPF programs that read the kernel's structures cannot be loaded";
    "CL041" Warning no_jit ["bridge" "steer" "xsk" "relay"]
        "BPF programs are interpreted"
        costs "each program takes several times as long for each packet";
    "CL042" Info sockmap_tick ["relay"]
        "A sockmap that redirects to a full receive queue waits for the clock tick"
        costs "such a redirect moves at most a receive buffer a tick, however fast the CPU is";
    "CL043" Problem no_af_xdp ["xsk" "lend"]
        "The kernel has no AF_XDP sockets"
        costs "xsk and lend do not work";
}

fn too_old(facts: &Facts) -> Option<Found> {
    let release = facts.kernel.release.filter(|release| *release < OLDEST)?;
    Some(Found {
        evidence: vec![format!("this is Linux {release}; expected {OLDEST} or newer")],
        command: "a newer kernel of the distribution (Debian 12: linux-image-amd64 from backports)"
            .into(),
        check: again("CL037"),
    })
}

fn newer_brings(facts: &Facts) -> Option<Found> {
    let release = facts.kernel.release.filter(|release| *release >= OLDEST)?;
    let missing = NEWER.iter().filter(|(since, _)| release < *since);
    let evidence =
        missing.map(|(since, what)| format!("Linux {since}, and this is {release}: {what}"));
    Found::if_any(
        evidence.collect(),
        || "a newer kernel of the distribution".into(),
        || again("CL038"),
    )
}

fn locked_down(facts: &Facts) -> Option<Found> {
    let mode = facts.kernel.lockdown.as_deref().filter(|mode| *mode == "confidentiality")?;
    Some(Found {
        evidence: vec![format!("/sys/kernel/security/lockdown is in the mode {mode}")],
        command: "boot with lockdown=integrity, which cachelane works under".into(),
        check: again("CL039"),
    })
}

fn no_btf(facts: &Facts) -> Option<Found> {
    (!facts.kernel.btf).then(|| Found {
        evidence: vec!["there is no /sys/kernel/btf/vmlinux".into()],
        command: "a kernel with CONFIG_DEBUG_INFO_BTF=y".into(),
        check: again("CL040"),
    })
}

fn no_jit(facts: &Facts) -> Option<Found> {
    let off = facts.sysctl("net.core.bpf_jit_enable") == Some(0);
    let absent = facts.kernel.options.get("CONFIG_BPF_JIT").is_some_and(|set| set == "n");
    let evidence = match (off, absent) {
        (true, _) => "net.core.bpf_jit_enable is 0",
        (false, true) => "the kernel is built without CONFIG_BPF_JIT",
        (false, false) => return None,
    };
    Some(Found {
        evidence: vec![evidence.into()],
        command: match absent {
            true => "a kernel with CONFIG_BPF_JIT=y".into(),
            false => {
                "sysctl -w net.core.bpf_jit_enable=1; programs that are loaded stay as they are"
                    .into()
            }
        },
        check: again("CL041"),
    })
}

fn sockmap_tick(facts: &Facts) -> Option<Found> {
    const BUFFERS: &str = "net.ipv4.tcp_rmem";

    let ticks: u64 = facts.kernel.options.get("CONFIG_HZ")?.parse().ok()?;
    let sizes = facts.sysctls.get(BUFFERS)?;
    let largest: u64 = sizes.split_whitespace().nth(2)?.parse().ok()?;
    if ticks >= FAST_TICK {
        return None;
    }
    let rate = largest.saturating_mul(ticks) / 1_000_000;
    let double = largest.saturating_mul(2);
    let (least, usual) = (sizes.split_whitespace().next()?, sizes.split_whitespace().nth(1)?);
    Some(Found {
        evidence: vec![format!(
            "CONFIG_HZ is {ticks} and the largest receive buffer {largest} bytes ({BUFFERS}): at most \
             about {rate} MB/s for a connection"
        )],
        command: format!(
            "sysctl -w {BUFFERS}='{least} {usual} {double}'; cachelane relay --engine sockmap does not \
             redirect to receive queues"
        ),
        check: "cachelane trial relay.engine --arms copy,sockmap".into(),
    })
}

fn no_af_xdp(facts: &Facts) -> Option<Found> {
    let option = facts.kernel.options.get("CONFIG_XDP_SOCKETS");
    let evidence = match &facts.answers.xsk {
        Some(XskAnswer::None(said)) => said.clone(),
        Some(_) => return None,
        None if option.is_some_and(|set| set == "n") => "CONFIG_XDP_SOCKETS is not set".into(),
        None => return None,
    };
    Some(Found {
        evidence: vec![evidence],
        command: "a kernel with CONFIG_XDP_SOCKETS=y".into(),
        check: again("CL043"),
    })
}

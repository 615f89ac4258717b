//! Limits of the process that was looked at.

use frames::AreaOptions;

use super::table;
use super::words::{again, at_once};
use crate::{Facts, Found, XskAnswer};

/// Files that the kernel lets a process have unless somebody says otherwise (`INR_OPEN_MAX`).
const USUAL_FILES: u64 = 4096;

table! { Limits:
    "CL044" Warning memlock ["xsk" "lend"]
        "Too little memory may be locked for AF_XDP"
        costs "cachelane xsk and lend are refused, or get fewer frames";
    "CL045" Info few_files ["relay"]
        "Few files may be open"
        costs "a relayed connection takes two, so the relay refuses more connections than fit";
    "CL046" Warning quota ["relay" "steer" "lend"]
        "A quota allows less CPU time than the allowed CPUs have"
        costs "as soon as the quota is used up, all threads stand still until the next period, and \
               packets wait or are dropped meanwhile";
    "CL047" Warning scattered_cpus ["relay" "frames"]
        "The allowed CPUs are spread over more lanes than they need"
        costs "threads that share connections and buffers are in different lanes, though all of them \
               would fit into fewer";
}

fn memlock(facts: &Facts) -> Option<Found> {
    let area = AreaOptions::default();
    let needed = u64::from(area.frames) * u64::from(area.frame_size);
    let process = &facts.process;
    let evidence = match (&facts.answers.xsk, process.memlock) {
        (Some(XskAnswer::Memlock(said)), _) => said.clone(),
        (Some(XskAnswer::Yes), _) => return None,
        (_, Some(limit)) if limit < needed && !process.locks_any => format!(
            "{} KiB of memory may be locked (ulimit -l), and the frames of a socket take {} KiB",
            limit / 1024,
            needed / 1024
        ),
        _ => return None,
    };
    Some(Found {
        evidence: vec![evidence],
        command: format!(
            "LimitMEMLOCK={needed} in the service, or ulimit -l {}, or CAP_IPC_LOCK",
            needed / 1024
        ),
        check: again("CL044"),
    })
}

fn few_files(facts: &Facts) -> Option<Found> {
    let files = facts.process.files.filter(|files| *files <= USUAL_FILES)?;
    Some(Found {
        evidence: vec![format!(
            "{files} files may be open (the hard limit of ulimit -n): at most {} relayed connections",
            files / 2
        )],
        command: "LimitNOFILE=1048576 in the service, or ulimit -Hn 1048576".into(),
        check: again("CL045"),
    })
}

fn quota(facts: &Facts) -> Option<Found> {
    let limit = facts.answers.cpu_limit.filter(|limit| limit.period_us > 0)?;
    let cpus = facts.process.allowed.as_ref()?.intersection(facts.cpus.lanes.online()).len() as u64;
    if limit.quota_us >= limit.period_us.saturating_mul(cpus) {
        return None;
    }
    let share = limit.quota_us as f64 / limit.period_us as f64;
    let waits = match limit.periods {
        0 => String::new(),
        periods => format!("; it stood still in {} of {periods} periods", limit.throttled),
    };
    Some(Found {
        evidence: vec![format!(
            "the cgroup's quota is {share:.2} CPUs ({} of each {} µs), and {cpus} CPUs are allowed{waits}",
            limit.quota_us, limit.period_us
        )],
        command: format!(
            "allow as many CPUs as the quota pays for (cpuset; Kubernetes: the static CPU manager), \
             cachelane relay --cpus with {} of them, or no quota (cpu.max)",
            (share.floor() as u64).max(1)
        ),
        check: at_once(&format!(
            "cachelane trial file:/sys/fs/cgroup/GROUP/cpu.max --arms '{} {period},max {period}'",
            limit.quota_us,
            period = limit.period_us
        )),
    })
}

fn scattered_cpus(facts: &Facts) -> Option<Found> {
    let lanes = &facts.cpus.lanes;
    let allowed = facts.process.allowed.as_ref()?.intersection(lanes.online());
    let used = facts.lanes_of(&allowed);
    let mut sizes: Vec<usize> = lanes.lanes().map(|lane| lanes.cpus(lane).len()).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut room = 0;
    let needed = sizes.iter().take_while(|size| {
        let short = room < allowed.len();
        room += **size;
        short
    });
    let needed = needed.count();
    if allowed.is_empty() || allowed.len() == facts.online() || used <= needed {
        return None;
    }
    Some(Found {
        evidence: vec![format!(
            "CPUs {allowed} are allowed: {} of {}, in {used} lanes where {needed} would do",
            allowed.len(),
            facts.online()
        )],
        command: format!(
            "systemctl set-property SERVICE AllowedCPUs={}; Kubernetes: the static CPU manager with \
             prefer-align-cpus-by-uncorecache",
            lanes.cpus(lanes.lanes().next()?)
        ),
        check: "cachelane trial relay.cpus --arms all,lane:0".into(),
    })
}

//! Settings of the network stack.

use super::table;
use super::words::{again, at_once, list, quote, trial_of_file, trial_of_sysctl};
use crate::{Device, Facts, Found, Softnet};

const DEFER: &str = "net.core.skb_defer_max";

table! { Stack:
    "CL018" Warning defer_off ["frames"]
        "Packet buffers are freed where they are read, whichever lane that is"
        costs "a buffer that is freed in another lane than its own takes the allocator's cache lines \
               with it, for each packet";
    "CL019" Info defer_on ["frames"]
        "Whether deferred freeing of packet buffers pays on these lanes has to be tried"
        costs "deferring gains where many CPUs share the work and loses where one CPU does all of it: \
               the default fits one of the two";
    "CL020" Warning backlog_drops ["steer" "relay"]
        "A CPU's backlog was full, and packets were dropped"
        costs "each drop is a retransmission for TCP, and a loss for UDP";
    "CL021" Info squeezed ["steer"]
        "Packet processing often stops at its budget"
        costs "packets that have arrived wait for the next turn, behind other work of the CPU";
    "CL022" Info busy_polling ["xsk" "relay"]
        "Busy polling is on for all sockets"
        costs "each thread that waits for packets spins on its CPU first, also where the CPU has other \
               work";
    "CL023" Warning gro_timer ["steer"]
        "A timer holds received packets back in GRO"
        costs "a packet that is alone waits for the timer before anybody gets it; steering is refused, \
               as steered packets could overtake it";
    "CL024" Warning defer_without_timer ["xsk"]
        "Deferred interrupts have no timer, and so no effect"
        costs "the card interrupts as if nothing had been set";
    "CL025" Warning wandering_threads ["steer"]
        "Threads that poll a card may run in any lane"
        costs "the scheduler moves them between lanes, and every packet that they handle with them";
    "CL026" Info hardware_timestamps ["steer"]
        "A card stamps the packets that it receives"
        costs "nothing as it is; steered packets lose their stamp, so that PTP and chrony become less \
               exact";
}

fn defer_off(facts: &Facts) -> Option<Found> {
    let off = facts.sysctl(DEFER) == Some(0) && facts.has_lanes();
    off.then(|| Found {
        evidence: vec![format!("{DEFER} is 0, on {} lanes", facts.cpus.lanes.lanes().len())],
        command: format!("sysctl -w {DEFER}=64"),
        check: at_once(&trial_of_sysctl(DEFER, "0,64")),
    })
}

fn defer_on(facts: &Facts) -> Option<Found> {
    let most = facts.sysctl(DEFER).filter(|most| *most > 0 && facts.has_lanes())?;
    Some(Found {
        evidence: vec![format!("{DEFER} is {most}, on {} lanes", facts.cpus.lanes.lanes().len())],
        command: format!("sysctl -w {DEFER}=0, if the trial finds it better"),
        check: at_once(&trial_of_sysctl(DEFER, &format!("{most},0"))),
    })
}

fn backlog_drops(facts: &Facts) -> Option<Found> {
    const BACKLOG: &str = "net.core.netdev_max_backlog";

    let dropped: Vec<&Softnet> = facts.softnet.iter().filter(|cpu| cpu.dropped > 0).collect();
    let evidence = dropped.iter().map(|cpu| {
        format!(
            "CPU {}: {} packets dropped of {}, since the start",
            cpu.cpu, cpu.dropped, cpu.processed
        )
    });
    let now = facts.sysctl(BACKLOG).unwrap_or(1000);
    let more = now.saturating_mul(4);
    Found::if_any(
        evidence.collect(),
        || format!("sysctl -w {BACKLOG}={more}, or fewer packets for these CPUs (RPS, interrupts)"),
        || at_once(&trial_of_sysctl(BACKLOG, &format!("{now},{more}"))),
    )
}

/// A few packets in thousands arrive while a CPU is late; more is the budget's doing.
fn squeezed(facts: &Facts) -> Option<Found> {
    const BUDGET: &str = "net.core.netdev_budget";
    /// Times that the budget was used up before it says anything.
    const LEAST: u64 = 1000;
    /// Packets for each such time, at most: with the usual budget of 300, a CPU stops so often if it
    /// spends a hundredth of its packets in full turns.
    const PACKETS: u64 = 30_000;

    let often = |cpu: &&Softnet| {
        cpu.squeezed >= LEAST && cpu.squeezed.saturating_mul(PACKETS) >= cpu.processed
    };
    let evidence = facts.softnet.iter().filter(often).map(|cpu| {
        format!(
            "CPU {}: stopped {} times, for {} packets, since the start",
            cpu.cpu, cpu.squeezed, cpu.processed
        )
    });
    let now = facts.sysctl(BUDGET).unwrap_or(300);
    let more = now.saturating_mul(2);
    Found::if_any(
        evidence.collect(),
        || format!("sysctl -w {BUDGET}={more}"),
        || at_once(&trial_of_sysctl(BUDGET, &format!("{now},{more}"))),
    )
}

fn busy_polling(facts: &Facts) -> Option<Found> {
    let names = ["net.core.busy_read", "net.core.busy_poll"];
    let set = names.map(|name| (name, facts.sysctl(name).unwrap_or(0)));
    let on: Vec<_> = set.into_iter().filter(|(_, microseconds)| *microseconds > 0).collect();
    let evidence = on.iter().map(|(name, microseconds)| format!("{name} is {microseconds} µs"));
    let (name, microseconds) = on.first()?;
    Found::if_any(
        evidence.collect(),
        || format!("sysctl -w {name}=0, and SO_BUSY_POLL for the sockets that need it"),
        || trial_of_sysctl(name, &format!("{microseconds},0")),
    )
}

fn gro_timer(facts: &Facts) -> Option<Found> {
    let held = |device: &&Device| device.gro_flush_timeout > 0 && device.napi_defer_hard_irqs == 0;
    let devices: Vec<&Device> = facts.devices.iter().filter(held).collect();
    let evidence = devices.iter().map(|device| match facts.steer_says(device, "gro-timeout") {
        Some(said) => quote(&device.name, said),
        None => {
            let (name, timeout) = (&device.name, device.gro_flush_timeout);
            format!("{name}: gro_flush_timeout is {timeout} ns, napi_defer_hard_irqs is 0")
        }
    });
    let first = devices.first()?;
    let path = format!("/sys/class/net/{}/gro_flush_timeout", first.name);
    Found::if_any(
        evidence.collect(),
        || format!("echo 0 > {path}"),
        || at_once(&trial_of_file(&path, &first.gro_flush_timeout.to_string(), "0")),
    )
}

fn defer_without_timer(facts: &Facts) -> Option<Found> {
    let useless =
        |device: &&Device| device.gro_flush_timeout == 0 && device.napi_defer_hard_irqs > 0;
    let devices: Vec<&Device> = facts.devices.iter().filter(useless).collect();
    let evidence = devices.iter().map(|device| {
        let (name, polls) = (&device.name, device.napi_defer_hard_irqs);
        format!("{name}: napi_defer_hard_irqs is {polls}, gro_flush_timeout is 0")
    });
    let first = devices.first()?;
    let path = format!("/sys/class/net/{}/gro_flush_timeout", first.name);
    Found::if_any(
        evidence.collect(),
        || format!("echo 20000 > {path}, or 0 into napi_defer_hard_irqs"),
        || at_once(&trial_of_file(&path, "0", "20000")),
    )
}

fn wandering_threads(facts: &Facts) -> Option<Found> {
    let of = |device: &Device| {
        // A thread's name is cut off, and with it the device's.
        let name = format!("napi/{}-", device.name);
        let start: String = name.chars().take(15).collect();
        let threads = facts.napi_threads.iter();
        let wander = |cpus| facts.lanes_of(cpus) > 1;
        threads.filter(|one| one.name.starts_with(&start) && wander(&one.cpus)).count()
    };
    let threaded = facts.devices.iter().filter(|device| device.threaded);
    let found: Vec<(&Device, usize)> =
        threaded.map(|device| (device, of(device))).filter(|(_, threads)| *threads > 0).collect();
    let evidence = found.iter().map(|(device, threads)| {
        format!(
            "{}: threaded is 1, and {threads} of its threads may run in several lanes",
            device.name
        )
    });
    let (device, _) = found.first()?;
    let path = format!("/sys/class/net/{}/threaded", device.name);
    Found::if_any(
        evidence.collect(),
        || {
            format!(
                "taskset -pc CPU PID for each thread that `pgrep -l napi/{}` lists",
                device.name
            )
        },
        || at_once(&trial_of_file(&path, "1", "0")),
    )
}

fn hardware_timestamps(facts: &Facts) -> Option<Found> {
    let devices: Vec<_> = facts
        .devices
        .iter()
        .filter_map(|device| Some((device, facts.steer_says(device, "hardware-timestamps")?)))
        .collect();
    let evidence = devices.iter().map(|(device, said)| quote(&device.name, said));
    Found::if_any(
        evidence.collect(),
        || {
            let names = list(devices.iter().map(|(device, _)| &device.name));
            format!("leave {names} to the kernel path while PTP or chrony needs the stamps")
        },
        || again("CL026"),
    )
}

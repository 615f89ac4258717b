//! What can be read, by name.

use std::fmt;

use trial::Better;

/// Something that can be read at any moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// As measures have it, such as `cpu.busy` or `net.bytes@eth0`.
    pub name: String,
    /// What it counts, such as `packets` or `s`; empty where nobody says.
    pub unit: String,
    /// What it is, in a few words.
    pub help: String,
    /// What it does over time.
    pub kind: Kind,
}

/// What a quantity does over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows: what counts is by how much.
    Total,
    /// It goes up and down: what counts is its mean over time.
    Level,
    /// A distribution of values that have been seen: what counts is those that come.
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Total => "total",
            Self::Level => "level",
            Self::Histogram => "histogram",
        })
    }
}

/// A quantity that every Linux host has, or could have.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) kind: Kind,
    /// Which direction is the good one; none where that depends.
    pub(crate) better: Option<Better>,
    /// What may or must follow after `@`.
    pub(crate) of: Of,
    pub(crate) family: Family,
    pub(crate) help: &'static str,
    /// Where it comes from, for the docs.
    #[cfg_attr(not(test), expect(dead_code, reason = "the docs are checked against it"))]
    pub(crate) from: &'static str,
}

/// What follows after the `@` of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// Nothing.
    Host,
    /// CPUs; all if there is no `@`.
    Cpus,
    /// A network device; those of [`crate::source::devices`] if there is no `@`.
    Device,
    /// A process id.
    Process,
    /// A cgroup's path.
    Cgroup,
}

impl Of {
    /// How the docs and messages write it after the name.
    pub(crate) fn written(self) -> &'static str {
        match self {
            Self::Host => "",
            Self::Cpus => "[@CPUS]",
            Self::Device => "[@DEVICE]",
            Self::Process => "@PID",
            Self::Cgroup => "@PATH",
        }
    }
}

/// Quantities that are read from the same files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Stat,
    CpuPressure,
    MemoryPressure,
    IoPressure,
    Devices,
    Protocols,
    Softnet,
    Scheduler,
    Memory,
    Process,
    Cgroup,
}

macro_rules! known {
    ($( $name:literal $unit:literal $kind:ident $better:ident $of:ident $family:ident
        $help:literal, $from:literal; )+) => {
        [ $( Known {
            name: $name, unit: $unit, kind: Kind::$kind, better: known!(@ $better), of: Of::$of,
            family: Family::$family, help: $help, from: $from,
        } ),+ ]
    };
    (@ Depends) => { None };
    (@ $better:ident) => { Some(Better::$better) };
}

/// All that are known by name, in the order of the docs.
pub(crate) static KNOWN: [Known; 29] = known! {
    "cpu.busy" "CPU s" Total Lower Cpus Stat
        "CPU time that was not idle, waiting for I/O or stolen", "/proc/stat and the clock";
    "cpu.user" "CPU s" Total Lower Cpus Stat
        "CPU time in programs, as sampled at ticks", "/proc/stat: user, nice";
    "cpu.system" "CPU s" Total Lower Cpus Stat
        "CPU time in the kernel without interrupts, as sampled at ticks", "/proc/stat: system";
    "cpu.softirq" "CPU s" Total Lower Cpus Stat
        "CPU time in softirqs, as sampled at ticks", "/proc/stat: softirq";
    "cpu.irq" "CPU s" Total Lower Cpus Stat
        "CPU time in hard interrupts, as sampled at ticks", "/proc/stat: irq";
    "cpu.steal" "CPU s" Total Lower Cpus Stat
        "CPU time that the hypervisor gave to others", "/proc/stat: steal";
    "cpu.wait" "CPU s" Total Lower Cpus Scheduler
        "time that threads waited for a CPU", "/proc/schedstat: run delay";
    "cpu.slices" "slices" Total Depends Cpus Scheduler
        "how often a thread got a CPU; cpu.wait/cpu.slices is the run-queue latency",
        "/proc/schedstat: time slices";
    "switches" "switches" Total Lower Host Stat
        "context switches", "/proc/stat: ctxt";
    "pressure.cpu" "s" Total Lower Host CpuPressure
        "time in which some thread waited for a CPU", "/proc/pressure/cpu: some";
    "pressure.memory" "s" Total Lower Host MemoryPressure
        "time in which some thread waited for memory", "/proc/pressure/memory: some";
    "pressure.memory_full" "s" Total Lower Host MemoryPressure
        "time in which all threads waited for memory", "/proc/pressure/memory: full";
    "pressure.io" "s" Total Lower Host IoPressure
        "time in which some thread waited for I/O", "/proc/pressure/io: some";
    "pressure.io_full" "s" Total Lower Host IoPressure
        "time in which all threads waited for I/O", "/proc/pressure/io: full";
    "memory.used" "bytes" Level Lower Host Memory
        "memory in use without buffers, page cache, reclaimable slabs and free lists of CPUs",
        "/proc/meminfo, /proc/zoneinfo";
    "net.packets" "packets" Total Higher Device Devices
        "packets received and sent", "/proc/thread-self/net/dev";
    "net.bytes" "bytes" Total Higher Device Devices
        "bytes received and sent", "/proc/thread-self/net/dev";
    "net.drops" "packets" Total Lower Device Devices
        "packets that the device or its driver dropped", "/proc/thread-self/net/dev";
    "tcp.segments" "segments" Total Higher Host Protocols
        "TCP segments received and sent", "/proc/thread-self/net/snmp: InSegs, OutSegs";
    "tcp.retransmits" "segments" Total Lower Host Protocols
        "TCP segments sent again", "/proc/thread-self/net/snmp: RetransSegs";
    "tcp.timeouts" "timeouts" Total Lower Host Protocols
        "retransmission timeouts of TCP", "/proc/thread-self/net/netstat: TCPTimeouts";
    "tcp.resets" "connections" Total Lower Host Protocols
        "established TCP connections that ended by a reset",
        "/proc/thread-self/net/snmp: EstabResets";
    "tcp.listen_drops" "connections" Total Lower Host Protocols
        "connections that a listener dropped", "/proc/thread-self/net/netstat: ListenDrops";
    "udp.drops" "packets" Total Lower Host Protocols
        "datagrams dropped since a socket's receive buffer was full",
        "/proc/thread-self/net/snmp and snmp6: RcvbufErrors";
    "softnet.packets" "packets" Total Higher Cpus Softnet
        "packets that softirqs took from devices and backlogs", "/proc/net/softnet_stat";
    "softnet.drops" "packets" Total Lower Cpus Softnet
        "packets dropped since a CPU's backlog was full", "/proc/net/softnet_stat";
    "softnet.squeezed" "times" Total Lower Cpus Softnet
        "how often a receive softirq ended with packets left", "/proc/net/softnet_stat";
    "process.cpu" "CPU s" Total Lower Process Process
        "CPU time of a process with all its threads", "the CPU-time clock of the process";
    "cgroup.cpu" "CPU s" Total Lower Cgroup Cgroup
        "CPU time of a cgroup and those below it", "cpu.stat: usage_usec, or cpuacct.usage";
};

impl Known {
    /// The one of this name.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// The name that is most like `name`, if one is much like it.
    pub(crate) fn nearest(name: &str) -> Option<&'static str> {
        let likeness = |known: &&Known| strsim::jaro_winkler(known.name, name);
        let nearest =
            KNOWN.iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
        (likeness(&nearest) > 0.85).then_some(nearest.name)
    }

    /// The quantity under this name, which may have an `@`.
    pub(crate) fn quantity(&self, name: String) -> Quantity {
        Quantity { name, unit: self.unit.into(), help: self.help.into(), kind: self.kind }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_docs_have_every_quantity_as_it_is() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measures.md");
        let text = fs::read_to_string(&path).unwrap();
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| `")).collect();
        let expected = KNOWN.iter().map(|known| {
            let better = known.better.map_or("", |better| match better {
                Better::Higher => "higher",
                Better::Lower => "lower",
            });
            format!(
                "| `{}{}` | {} | {} | {better} | {} | {} |",
                known.name,
                known.of.written(),
                known.unit,
                known.kind,
                known.help,
                known.from
            )
        });
        let expected: Vec<String> = expected.collect();
        assert_eq!(rows, expected, "docs/measures.md should have\n{}", expected.join("\n"));
    }

    #[test]
    fn a_slip_of_the_keys_finds_the_name_that_was_meant() {
        for (slip, meant) in [
            ("cpu.bussy", "cpu.busy"),
            ("net.packet", "net.packets"),
            ("tcp.retrans", "tcp.retransmits"),
        ] {
            assert_eq!(Known::nearest(slip), Some(meant));
        }
        assert_eq!(Known::nearest("relay.bytes"), None);
    }
}

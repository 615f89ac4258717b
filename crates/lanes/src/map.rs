//! The map from CPUs to lanes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::sysfs::Machine;
use crate::{CpuSet, Error, ErrorKind, Result, layout};

/// Marks a CPU that is in no lane. A map has at most as many lanes as CPUs, so no lane has it.
const NO_LANE: u16 = u16::MAX;

static NO_CPUS: CpuSet = CpuSet::new();

/// The CPUs of a machine, divided into lanes: every online CPU is in exactly one.
///
/// Lanes describe the hardware: a process that may use some CPUs only sees the same lanes as any
/// other. [`allowed`](Self::allowed) says what it may use, and
/// [`CpuSpec::resolve`](crate::CpuSpec::resolve) keeps to it.
///
/// `Display` gives the layout in the form that [`with_override`](Self::with_override) reads.
#[derive(Clone, PartialEq, Eq)]
pub struct LaneMap {
    lane_of: Box<[u16; CpuSet::MAX + 1]>,
    lanes: Vec<CpuSet>,
    online: CpuSet,
    present: CpuSet,
    allowed: CpuSet,
    /// The CPUs of each NUMA node that has some.
    nodes: BTreeMap<u32, CpuSet>,
    source: Source,
}

impl LaneMap {
    /// The lanes of this machine, and what this process's CPU affinity allows.
    ///
    /// The affinity is that of the process's main thread, which the cpuset of a container is part
    /// of; a thread that has pinned itself gets the same answer as the others.
    ///
    /// Where there is no `/sys/devices/system`, as in some containers, the CPUs of the affinity are
    /// all that there are, and one lane.
    ///
    /// # Errors
    /// [`ErrorKind::Sysfs`] where `/sys/devices/system` is there and cannot be read,
    /// [`ErrorKind::Affinity`] where the kernel does not tell the affinity (it has more CPUs than
    /// [`CpuSet::MAX`]).
    pub fn detect() -> Result<Self> {
        let affinity = rustix::thread::sched_getaffinity(Some(rustix::process::getpid()))
            .map_err(|e| Error::caused(ErrorKind::Affinity, "read this process's affinity", e))?;
        let allowed = (0..=CpuSet::MAX).filter(|&cpu| affinity.is_set(cpu)).collect();
        let root = Path::new("/sys/devices/system");
        match root.join("cpu/online").exists() {
            true => Self::from_sysfs(root, Some(&allowed)),
            false => Ok(Self::from_affinity(allowed)),
        }
    }

    /// One lane of all CPUs that this process may use, for where nothing else is known.
    pub fn from_affinity(allowed: CpuSet) -> Self {
        let lanes = vec![allowed.clone()];
        let (online, present, nodes) = (allowed.clone(), allowed.clone(), BTreeMap::new());
        let (lane_of, source) = (table(&lanes), Source::AllCpus);
        Self { lane_of, lanes, online, present, allowed, nodes, source }
    }

    /// The lanes that a directory describes which stands for `/sys/devices/system`: it has `cpu/`
    /// and, where there is NUMA, `node/`. `None` allows every online CPU.
    ///
    /// # Errors
    /// [`ErrorKind::Sysfs`], naming the file.
    pub fn from_sysfs(root: &Path, allowed: Option<&CpuSet>) -> Result<Self> {
        let machine = Machine::read(root)?;
        let (lanes, source) = layout::of_machine(&machine);
        let allowed = machine.online.intersection(allowed.unwrap_or(&machine.online));
        let Machine { online, present, mut nodes, .. } = machine;
        nodes.retain(|_, cpus| !cpus.is_empty());
        Ok(Self { lane_of: table(&lanes), lanes, online, present, allowed, nodes, source })
    }

    /// The same machine with the lanes that a user gave, such as `0-7|8-15`; lane 0 is the first.
    /// This is the one way to a lane that spans NUMA nodes.
    ///
    /// # Errors
    /// [`ErrorKind::Syntax`], [`NoSuchCpu`](ErrorKind::NoSuchCpu),
    /// [`Offline`](ErrorKind::Offline), [`Overlap`](ErrorKind::Overlap) for a CPU in two lanes and
    /// [`Incomplete`](ErrorKind::Incomplete) for an online CPU in none, each with the
    /// [`offset`](Error::offset) in `spec`.
    pub fn with_override(&self, spec: &str) -> Result<Self> {
        let lanes = layout::parse(spec, &self.online, &self.present)?;
        Ok(Self { lane_of: table(&lanes), lanes, source: Source::Override, ..self.clone() })
    }

    /// The same machine with none of its CPUs online, and so without lanes.
    pub fn all_offline(&self) -> Self {
        let (online, allowed) = (CpuSet::new(), CpuSet::new());
        Self { lane_of: table(&[]), lanes: Vec::new(), online, allowed, ..self.clone() }
    }

    /// The lane of a CPU; `None` for a CPU that was offline or that does not exist. One array
    /// read.
    #[inline]
    pub fn lane_of(&self, cpu: usize) -> Option<LaneId> {
        match self.lane_of.get(cpu) {
            Some(&lane) if lane != NO_LANE => Some(LaneId(lane)),
            _ => None,
        }
    }

    /// The number of a CPU's NUMA node, for who places memory; `None` where there is no choice: on a
    /// machine whose CPUs are all in one node, and for a CPU in none.
    pub fn node_of(&self, cpu: usize) -> Option<u32> {
        let mut nodes = self.nodes.iter().filter(|_| self.nodes.len() > 1);
        nodes.find(|(_, cpus)| cpus.contains(cpu)).map(|(node, _)| *node)
    }

    /// Whether two CPUs are in one lane; false where one of them is in none.
    #[inline]
    pub fn same_lane(&self, a: usize, b: usize) -> bool {
        let lane = self.lane_of(a);
        lane.is_some() && lane == self.lane_of(b)
    }

    /// The lanes, ascending from `LaneId(0)` without gaps.
    pub fn lanes(&self) -> impl ExactSizeIterator<Item = LaneId> + DoubleEndedIterator + use<> {
        // `table` has checked that the count fits.
        (0..self.lanes.len() as u16).map(LaneId)
    }

    /// The CPUs of a lane, allowed to this process or not; none for a lane that the map lacks.
    pub fn cpus(&self, lane: LaneId) -> &CpuSet {
        self.lanes.get(usize::from(lane.0)).unwrap_or(&NO_CPUS)
    }

    /// `count` of the CPUs that this process may use, or all if there are no more: those of the lane
    /// of `cpu` first, and in each lane from `cpu` on, so that processes that start on different CPUs
    /// do not all choose the same.
    pub fn nearest(&self, cpu: usize, count: usize) -> CpuSet {
        let far = |other: &usize| (!self.same_lane(cpu, *other), *other < cpu, *other);
        let mut cpus: Vec<usize> = self.allowed.iter().collect();
        cpus.sort_by_key(far);
        cpus.into_iter().take(count).collect()
    }

    /// The CPUs that were online when the map was made.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// The CPUs that the machine has, online or not.
    pub fn present(&self) -> &CpuSet {
        &self.present
    }

    /// The online CPUs that this process may use.
    pub fn allowed(&self) -> &CpuSet {
        &self.allowed
    }

    /// What the lanes follow from.
    pub fn source(&self) -> Source {
        self.source
    }
}

/// A lane's number in its [`LaneMap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u16);

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a [`LaneMap`]'s lanes follow from: the highest level of unified cache on the machine.
///
/// On a machine whose CPUs differ, each CPU goes by its own highest level, and this is the highest
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display)]
#[non_exhaustive]
pub enum Source {
    /// An L4 or beyond, on some mainframes and parts with embedded DRAM.
    L4,
    /// The L3.
    L3,
    /// The L2, where no L3 is shown. On Arm servers whose system cache is not in the firmware's
    /// tables, this may make a lane of each core: an override helps.
    L2,
    /// No cache is shown: all CPUs of a NUMA node are a lane.
    #[strum(serialize = "all CPUs")]
    AllCpus,
    /// The user said so.
    #[strum(serialize = "override")]
    Override,
}

impl fmt::Display for LaneMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, lane) in self.lanes.iter().enumerate() {
            write!(f, "{}{lane}", if index == 0 { "" } else { "|" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for LaneMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LaneMap({self}, from {}, allowed {})", self.source, self.allowed)
    }
}

/// The array that [`LaneMap::lane_of`] reads. Lanes are disjoint and not empty, so there are at
/// most as many as CPUs.
fn table(lanes: &[CpuSet]) -> Box<[u16; CpuSet::MAX + 1]> {
    assert!(lanes.len() <= CpuSet::MAX + 1, "{} lanes", lanes.len());
    let mut table = Box::new([NO_LANE; CpuSet::MAX + 1]);
    for (id, lane) in lanes.iter().enumerate() {
        for cpu in lane.iter() {
            table[cpu] = id as u16;
        }
    }
    table
}

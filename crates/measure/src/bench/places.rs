//! The CPUs that threads are pinned to.

use lanes::LaneMap;

use super::experiment::{Plan, in_random_order};

/// Two CPUs in one lane and, where there are any, two in different ones.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// Two CPUs of one lane; one where the process has only one.
    near: Vec<usize>,
    /// Two CPUs of two lanes, if there are two lanes.
    far: Option<Vec<usize>>,
}

/// CPUs, for people.
pub(super) fn text(cpus: &[usize]) -> String {
    let plural = if cpus.len() == 1 { "" } else { "s" };
    format!("CPU{plural} {}", numbers(cpus))
}

fn numbers(cpus: &[usize]) -> String {
    let texts: Vec<_> = cpus.iter().map(usize::to_string).collect();
    texts.join(" and ")
}

impl Places {
    /// As the host and this process's affinity have it.
    pub(super) fn detect() -> anyhow::Result<Places> {
        let map = LaneMap::detect()?;
        let cpus: Vec<usize> = map.allowed().iter().collect();
        let &[first, ref others @ ..] = cpus.as_slice() else {
            anyhow::bail!("no CPU is open to this process");
        };
        let near = others.iter().find(|cpu| map.same_lane(first, **cpu));
        let far = others.iter().find(|cpu| !map.same_lane(first, **cpu));
        let pair = |other: &usize| vec![first, *other];
        let near = near.or(far).map_or_else(|| vec![first], pair);
        Ok(Places { near, far: far.map(pair) })
    }

    /// CPUs that share a cache.
    pub(super) fn near(&self) -> &[usize] {
        &self.near
    }

    /// Where a first thread is, and a second one: the same where there is one CPU.
    pub(super) fn two(&self) -> [usize; 2] {
        [self.near[0], self.near[self.near.len() - 1]]
    }

    /// CPUs that share none, or if there are none such, those that do.
    pub(super) fn far(&self) -> &[usize] {
        self.far.as_deref().unwrap_or(&self.near)
    }

    /// What a reader should know of them.
    pub(super) fn notes(&self, plan: &Plan) -> Vec<String> {
        let near = format!("Threads were pinned, by turns, to CPU {}.", numbers(&self.near));
        let far = match &self.far {
            Some(far) => format!("In two lanes: CPU {}.", numbers(far)),
            None => "The host has one lane: 'two lanes' says what the pool was told, not how far \
                     the CPUs are apart."
                .into(),
        };
        let one = self.near.len() == 1;
        let one = one.then(|| "This process has one CPU: no two threads ran at a time.".to_owned());
        [in_random_order(plan), near, far].into_iter().chain(one).collect()
    }
}

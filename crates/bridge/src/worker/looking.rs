//! The worker's looks at the host: at what was announced, at once, and at everything now and then;
//! and what it tells the packet path after them.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::Worker;
use crate::Result;
use crate::decide::decide;
use crate::host::Heard;
use crate::lease::RENEWAL;
use crate::rules::Reading;
use crate::shared::jiffies;
use crate::state::Port;

/// How often to look for what the kernel does not announce, where that is cheap.
pub(super) const GLANCE: Duration = Duration::from_millis(250);
/// When to glance again after something has changed under a glance.
const AGAIN: Duration = Duration::from_millis(10);
/// How often to look at everything.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// Looks and glances take each at most one part in so many of a CPU.
const SHARE: u32 = 50;
/// What is announced may take at most one part in so many.
const ANNOUNCED_SHARE: u32 = 10;
/// What looks at announced changes may take at once before that share is kept.
const BURST: Duration = Duration::from_millis(200);

impl Worker {
    /// Takes in what was announced, leaves that to the kernel path, and renews the lease: nothing
    /// that was announced before this call is forwarded by what was known before it.
    pub(super) fn tend(&mut self) -> Result<()> {
        // Between two of a thousand ports, too: it gets on.
        self.pulse.as_ref().inspect(|pulse| pulse.beat());
        let program = &self.shared.program;
        // Before the notifications are taken: what comes later may be missed.
        let from = program.now()?;
        self.drain()?;
        let now = Instant::now();
        self.longest.add(now - self.at_work);
        (self.at_work, self.next_renewal) = (now, now + RENEWAL);
        match self.longest.lease().length {
            Some(length) if self.failures == 0 => self.shared.program.renew(from, jiffies(length)),
            // Looks fail or take too long: everything takes the kernel path until that is over.
            _ => Ok(()),
        }
    }

    /// Looks at what was announced to have changed, and at that alone.
    pub(super) fn attend(&mut self) -> Result<()> {
        let begin = cpu_time();
        let heard = std::mem::take(&mut self.watch.heard);
        if heard.everything {
            self.look()?;
        } else {
            if heard.queues {
                self.reader.read_queues()?;
            }
            if heard.bridge {
                self.reader.look_at_bridge(&mut self.state)?;
            }
            let mut around = heard.hooks;
            for index in heard.ports {
                around |= self.look_at_port(index)?;
                self.tend()?;
            }
            if around {
                let rules = Reading::begin(&self.shared.program)?;
                self.reader.look_around(&mut self.state)?;
                self.act()?;
                self.believe(rules)?;
            } else {
                self.act()?;
            }
        }
        // A bucket that leaks: it holds a burst, and what is over has to wait.
        let now = Instant::now();
        let cost = cpu_time().saturating_sub(begin).saturating_mul(ANNOUNCED_SHARE);
        let burst = BURST * ANNOUNCED_SHARE;
        let floor = now.checked_sub(burst).unwrap_or(now);
        self.next_attention = self.next_attention.max(floor) + cost;
        Ok(())
    }

    /// Reads one port again. Returns whether it has come, gone, or is called otherwise.
    fn look_at_port(&mut self, index: u32) -> Result<bool> {
        let found = self.reader.look_at_port(&self.state.bridge, index)?;
        let ports = &mut self.state.ports;
        let at = ports.iter().position(|port| port.index == index);
        let was = at.map(|at| ports.remove(at));
        let name = |port: &Option<Port>| port.as_ref().map(|port| port.name.clone());
        let anew = name(&was) != name(&found);
        if let Some(port) = found {
            let at = ports.partition_point(|other| other.number < port.number);
            ports.insert(at, port);
        }
        if anew {
            self.watch.follow(&self.state);
        }
        Ok(anew)
    }

    /// Reads all of the host that matters, and acts on what has changed.
    pub(super) fn look(&mut self) -> Result<()> {
        let begin = cpu_time();
        let rules = Reading::begin(&self.shared.program)?;
        // What was announced before is seen by this look; what comes while it goes on is not.
        self.watch.heard = Heard::default();
        let mut survey = self.reader.survey(self.shared.bridge)?;
        while self.reader.survey_port(&mut survey)? {
            self.tend()?;
        }
        self.state = self.reader.finish(survey)?;
        self.state.longest_look = self.longest.lease().longest_look;
        self.watch.follow(&self.state);
        self.count_arrivals()?;
        self.act()?;
        self.longest.turn();
        self.next_look = later(begin, LOOK);
        self.next_glance = later(begin, GLANCE);
        self.believe(rules)
    }

    /// Reads what changes in silence, and acts on it.
    pub(super) fn glance(&mut self) -> Result<()> {
        let begin = cpu_time();
        let rules = Reading::begin(&self.shared.program)?;
        self.reader.glance(&mut self.state)?;
        self.act()?;
        self.next_glance = later(begin, GLANCE);
        self.believe(rules)
    }

    /// Has the packet path believe the rules that were read, where they leave bridged packets alone.
    pub(super) fn believe(&mut self, rules: Reading) -> Result<()> {
        let program = &self.shared.program;
        let held = rules.end(program)?;
        if held.is_none() {
            // Of what changed meanwhile, either may have been read.
            self.next_glance = Instant::now() + AGAIN;
        }
        let harmless = held.filter(|_| self.state.netfilter.bridge.is_empty());
        program.believe(harmless)
    }

    /// Brings the packet path in line with the host.
    pub(super) fn act(&mut self) -> Result<()> {
        self.tend()?;
        self.plan()?;
        if self.attach()? {
            self.plan()?;
        }
        Ok(())
    }

    /// Decides anew, and tells the packet path.
    pub(super) fn plan(&mut self) -> Result<()> {
        self.inlets.arrange(&self.state);
        for port in &mut self.state.ports {
            port.refused = self.refused.get(&port.index).cloned();
            port.unseen = self.arrivals.keeps_all(port.index);
            port.no_vlan_room = self.inlets.have_no_room(port.index, port.number);
        }
        let plan = decide(&self.state, Some(self.shared.program.id()));
        self.place(&plan)?;
        let before = self.shared.gate.lock().plan.clone();
        self.report.changes(&before, &plan);
        // What was announced while the host was read is not in the plan.
        let heard = &self.watch.heard;
        let (alarmed, unread) = (heard.concerns_all(), !heard.ports.is_empty());
        self.shared.change(|gate| {
            (gate.plan, gate.alarmed, gate.unread) = (plan, alarmed, unread);
        })
    }
}

/// When to do again what began at this CPU time and has ended now: after `time`, or as much later
/// as it takes to keep within its share of a CPU.
pub(super) fn later(begin: Duration, time: Duration) -> Instant {
    Instant::now() + time.max(cpu_time().saturating_sub(begin).saturating_mul(SHARE))
}

/// The CPU time of this thread: what it spends while it is stopped, or waits, is nobody's.
pub(crate) fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

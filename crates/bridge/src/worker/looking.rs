//! The worker's looks at the host, and what it tells the packet path after them.

use std::time::Instant;

use super::Worker;
use super::pace::{AGAIN, GLANCE, LOOK, cpu_time, later};
use crate::Result;
use crate::decide::decide;
use crate::host::Heard;
use crate::rules::Reading;

impl Worker {
    /// Reads all of the host that matters, and acts on what has changed.
    pub(super) fn look(&mut self) -> Result<()> {
        let begin = cpu_time();
        let rules = Reading::begin(&self.shared.program)?;
        // What was announced before is seen by this look; what comes while it goes on is not.
        self.watch.heard = Heard::default();
        let mut survey = self.reader.survey(self.index)?;
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
        for port in &mut self.state.ports {
            port.refused = self.refused.get(&port.index).cloned();
            port.unseen = self.arrivals.keeps_all(port.index);
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

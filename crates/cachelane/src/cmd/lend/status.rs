//! How the lender stands: its knob, its counters, its part of the live line and of the report.

use std::sync::Arc;
use std::time::Duration;

use knobs::Registry;
use lend::{BorrowerStatus, Lender, LenderCounters, Offences, Refusals, Standing};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::options::ACCOUNTING;
use crate::args::name_of;
use crate::counters;
use crate::figures::{named, tight};
use crate::packets::job::{Beside, Report};

/// The lender, for those who look at it.
pub(super) struct Status {
    lender: Arc<Lender>,
    /// Who borrowed when the threads were about to end.
    last: Mutex<Vec<BorrowerStatus>>,
}

impl Status {
    pub(super) fn new(lender: Lender) -> Status {
        Status { lender: Arc::new(lender), last: Mutex::default() }
    }
}

impl Beside for Status {
    fn register(&self, registry: &Registry) -> Result<(), knobs::Error> {
        lend::register(&self.lender, registry)
    }

    fn words(&self) -> Option<String> {
        let Standing { on_loan, borrowers, .. } = self.lender.standing();
        let dropped = match self.lender.counters().dropped {
            0 => String::new(),
            dropped => format!(", over quota {}", tight(dropped as f64)),
        };
        let plural = if borrowers == 1 { "" } else { "s" };
        Some(format!("{borrowers} borrower{plural}, {on_loan} on loan{dropped}"))
    }

    fn fields(&self) -> Map<String, Value> {
        let borrowers = self.lender.borrowers().iter().map(object).collect();
        let lend = figures(&self.lender).into();
        [("lend".into(), lend), ("borrowers".into(), borrowers)].into_iter().collect()
    }

    fn ending(&self) {
        *self.last.lock() = self.lender.borrowers();
    }

    fn add_to(&self, report: &mut Report) {
        let counts = self.lender.counters();
        let borrowers = self.last.lock();
        report.lines.push(format!(
            "lent {}, returned {}, reclaimed from who went {}, dropped at borrowers with their \
             quota {}, for nobody {}",
            counts.lent, counts.returned, counts.reclaimed, counts.dropped, counts.unwanted
        ));
        report.lines.push(format!(
            "borrowers: {} joined, {} left, {} disconnected, {} evicted, {} there at the end",
            counts.joined,
            counts.left,
            counts.disconnected,
            counts.evicted,
            borrowers.len()
        ));
        if counts.unstamped > 0 {
            report.lines.push(format!("lent with the time of their batch: {}", counts.unstamped));
        }
        report.lines.extend(borrowers.iter().map(line));
        let refused = named(counters::named(Refusals::FIELDS, self.lender.refusals().values()));
        let offences = named(counters::named(Offences::FIELDS, self.lender.offences().values()));
        for (what, reasons) in [("refused", refused), ("offences", offences)] {
            if !reasons.is_empty() {
                report.lines.push(format!("{what}: {reasons}"));
            }
        }
        let mut lend = figures(&self.lender);
        lend.insert("autorelease".into(), name_of(ACCOUNTING, self.lender.accounting()).into());
        report.fields["lend"] = lend.into();
        report.fields["borrowers"] = borrowers.iter().map(object).collect();
    }
}

fn figures(lender: &Lender) -> Map<String, Value> {
    let mut figures = counters::object(LenderCounters::FIELDS, lender.counters().values());
    let Standing { on_loan, lingering, .. } = lender.standing();
    figures.insert("on_loan".into(), on_loan.into());
    figures.insert("lingering".into(), lingering.into());
    let refused = counters::object(Refusals::FIELDS, lender.refusals().values());
    figures.insert("refused".into(), refused.into());
    let offences = counters::object(Offences::FIELDS, lender.offences().values());
    figures.insert("offences".into(), offences.into());
    figures
}

/// A borrower, for people.
fn line(borrower: &BorrowerStatus) -> String {
    let BorrowerStatus { name, uid, quota, out, lent, returned, dropped, offences, .. } = borrower;
    let pid = borrower.pid.map_or_else(|| "elsewhere".into(), |pid| format!("pid {pid}"));
    let among = match (borrower.mirror, borrower.group) {
        (true, _) => ", mirror".into(),
        (false, 0) => String::new(),
        (false, group) => format!(", group {group}"),
    };
    let since = Duration::from_secs(borrower.since.elapsed().as_secs());
    let since = humantime::format_duration(since);
    format!(
        "  {name} ({pid}, uid {uid}{among}, for {since}): lent {lent}, returned {returned}, dropped \
         {dropped}, has {out} of {quota}, offences {offences}"
    )
}

/// A borrower, for programs.
fn object(borrower: &BorrowerStatus) -> Value {
    json!({
        "slot": borrower.slot,
        "name": borrower.name,
        "pid": borrower.pid,
        "uid": borrower.uid,
        "mirror": borrower.mirror,
        "group": borrower.group,
        "quota": borrower.quota,
        "out": borrower.out,
        "lent": borrower.lent,
        "returned": borrower.returned,
        "dropped": borrower.dropped,
        "offences": borrower.offences,
        "seconds": borrower.since.elapsed().as_secs_f64(),
    })
}

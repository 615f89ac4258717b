//! How the lender stands: its knob, its counters, its part of the live line and of the report.

use std::sync::Arc;
use std::time::Duration;

use frames::Accounting;
use knobs::{Field, Knob, MeterKind, Registry};
use lend::{BorrowerStatus, Lender, LenderCounters, Offences, Refusals};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

use super::options::ACCOUNTING;
use crate::args::name_of;
use crate::counters::{self, named as counted, register};
use crate::figures::{named, tight};
use crate::packets::job::{Beside, Report};

/// The lender, for those who look at it.
pub(super) struct Status {
    lender: Arc<Lender>,
    /// Who borrowed when the threads were about to end.
    last: Mutex<Vec<BorrowerStatus>>,
}

kit::counters! {
    /// What has happened.
    struct Counts from LenderCounters {
        joined: "borrowers", "Borrowers that joined.";
        left: "borrowers", "Borrowers that went by themselves, or died.";
        disconnected: "borrowers", "Borrowers disconnected for what they did.";
        paused: "times", "Times that no connections were accepted for a while.";
        lent: "loans", "Loans, one for each part of a packet and borrower.";
        returned: "loans", "Loans that came back.";
        reclaimed: "loans", "Loans that ended with their borrower.";
        dropped: "packets", "Packets of borrowers that had their quota.";
        unwanted: "packets", "Packets received for nobody.";
    }
}

/// What there is now.
const NOW: [Field; 3] = [
    ("on_loan", "frames", "Frames that borrowers have."),
    ("borrowers", "borrowers", "Borrowers that are there."),
    ("lingering", "borrowers", "Borrowers that left and hold the memory that was made for them."),
];

impl Status {
    pub(super) fn new(lender: Lender) -> Status {
        Status { lender: Arc::new(lender), last: Mutex::default() }
    }

    fn knob(&self) -> Knob {
        let (reader, writer) = (Arc::clone(&self.lender), Arc::clone(&self.lender));
        let help = "how account of lent frames is kept: by a counter for each frame (off), or by \
                    a ledger for each borrower (on)";
        let get = move || Ok(reader.accounting() == Accounting::Ledgers);
        let set = move |on| {
            writer.set_accounting(if on { Accounting::Ledgers } else { Accounting::Counters })
        };
        Knob::off_on("lend.autorelease", help, false, get, set)
    }
}

impl Beside for Status {
    fn register(&self, registry: &Registry) -> Result<(), knobs::Error> {
        registry.register(self.knob())?;
        let lender = Arc::clone(&self.lender);
        let now = move || {
            let LenderCounters { on_loan, lingering, .. } = lender.counters();
            [on_loan, lender.borrowers().len() as u64, lingering]
        };
        register(registry, MeterKind::Gauge, "lend", NOW, now)?;
        let [counts, refused, offences] = [(); 3].map(|()| Arc::clone(&self.lender));
        let counts = move || Counts::from(&counts.counters()).values();
        register(registry, MeterKind::Counter, "lend", Counts::FIELDS, counts)?;
        let refused = move || refused.counters().refused.values();
        register(registry, MeterKind::Counter, "lend.refused", Refusals::FIELDS, refused)?;
        let offences = move || offences.counters().offences.values();
        register(registry, MeterKind::Counter, "lend.offences", Offences::FIELDS, offences)
    }

    fn words(&self) -> Option<String> {
        let (counters, borrowers) = (self.lender.counters(), self.lender.borrowers().len());
        let dropped = match counters.dropped {
            0 => String::new(),
            dropped => format!(", over quota {}", tight(dropped as f64)),
        };
        let plural = if borrowers == 1 { "" } else { "s" };
        let on_loan = counters.on_loan;
        Some(format!("{borrowers} borrower{plural}, {on_loan} on loan{dropped}"))
    }

    fn fields(&self) -> Map<String, Value> {
        let borrowers = self.lender.borrowers().iter().map(object).collect();
        let lend = figures(&self.lender.counters()).into();
        [("lend".into(), lend), ("borrowers".into(), borrowers)].into_iter().collect()
    }

    fn ending(&self) {
        *self.last.lock() = self.lender.borrowers();
    }

    fn add_to(&self, report: &mut Report) {
        let counters = self.lender.counters();
        let borrowers = self.last.lock();
        report.lines.push(format!(
            "lent {}, returned {}, reclaimed from who went {}, dropped at borrowers with their \
             quota {}, for nobody {}",
            counters.lent,
            counters.returned,
            counters.reclaimed,
            counters.dropped,
            counters.unwanted
        ));
        report.lines.push(format!(
            "borrowers: {} joined, {} left, {} disconnected, {} there at the end",
            counters.joined,
            counters.left,
            counters.disconnected,
            borrowers.len()
        ));
        report.lines.extend(borrowers.iter().map(line));
        let refused = named(counted(Refusals::FIELDS, counters.refused.values()));
        let offences = named(counted(Offences::FIELDS, counters.offences.values()));
        for (what, reasons) in [("refused", refused), ("offences", offences)] {
            if !reasons.is_empty() {
                report.lines.push(format!("{what}: {reasons}"));
            }
        }
        let mut lend = figures(&counters);
        lend.insert("autorelease".into(), name_of(ACCOUNTING, self.lender.accounting()).into());
        report.fields["lend"] = lend.into();
        report.fields["borrowers"] = borrowers.iter().map(object).collect();
    }
}

fn figures(counters: &LenderCounters) -> Map<String, Value> {
    let mut figures = counters::object(Counts::FIELDS, Counts::from(counters).values());
    figures.insert("on_loan".into(), counters.on_loan.into());
    figures.insert("lingering".into(), counters.lingering.into());
    let refused = counters::object(Refusals::FIELDS, counters.refused.values());
    figures.insert("refused".into(), refused.into());
    let offences = counters::object(Offences::FIELDS, counters.offences.values());
    figures.insert("offences".into(), offences.into());
    figures
}

/// A borrower, for people.
fn line(borrower: &BorrowerStatus) -> String {
    let BorrowerStatus { name, uid, quota, out, lent, returned, dropped, offences, .. } = borrower;
    let pid = borrower.pid.map_or_else(|| "elsewhere".into(), |pid| format!("pid {pid}"));
    let mirror = if borrower.mirror { ", mirror" } else { "" };
    let since = Duration::from_secs(borrower.since.elapsed().as_secs());
    let since = humantime::format_duration(since);
    format!(
        "  {name} ({pid}, uid {uid}{mirror}, for {since}): lent {lent}, returned {returned}, dropped \
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
        "quota": borrower.quota,
        "out": borrower.out,
        "lent": borrower.lent,
        "returned": borrower.returned,
        "dropped": borrower.dropped,
        "offences": borrower.offences,
        "seconds": borrower.since.elapsed().as_secs_f64(),
    })
}

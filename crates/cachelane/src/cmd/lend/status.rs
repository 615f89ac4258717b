//! How the lender stands: its knob, its counters, its part of the live line and of the report.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use knobs::{Knob, Registry, Values};
use lend::{BorrowerStatus, Lender, LenderCounters, Offences, Refusals};
use serde_json::{Map, Value, json};

use super::options::ACCOUNTING;
use crate::args::{name_of, of_name};
use crate::figures::{named, tight};
use crate::packets::job::{Beside, More};

/// The lender, for those who look at it.
pub(super) struct Status {
    lender: Arc<Lender>,
    /// Who borrowed when the threads were about to end.
    last: Mutex<Vec<BorrowerStatus>>,
}

type Count = (&'static str, &'static str, &'static str, fn(&LenderCounters) -> u64);

/// What has happened: a name, its unit, what it means, and how often it happened.
const COUNTS: [Count; 9] = [
    ("joined", "borrowers", "Borrowers that joined.", |c| c.joined),
    ("left", "borrowers", "Borrowers that went by themselves, or died.", |c| c.left),
    ("disconnected", "borrowers", "Borrowers disconnected for what they did.", |c| c.disconnected),
    ("paused", "times", "Times that no connections were accepted for a while.", |c| c.paused),
    ("lent", "loans", "Loans, one for each part of a packet and borrower.", |c| c.lent),
    ("returned", "loans", "Loans that came back.", |c| c.returned),
    ("reclaimed", "loans", "Loans that ended with their borrower.", |c| c.reclaimed),
    ("dropped", "packets", "Packets of borrowers that had their quota.", |c| c.dropped),
    ("unwanted", "packets", "Packets received for nobody.", |c| c.unwanted),
];

impl Status {
    pub(super) fn new(lender: Lender) -> Status {
        Status { lender: Arc::new(lender), last: Mutex::default() }
    }

    fn knob(&self) -> Knob {
        let (reader, writer) = (Arc::clone(&self.lender), Arc::clone(&self.lender));
        let set = move |value: &str| {
            writer.set_accounting(of_name(ACCOUNTING, value)?).map_err(|error| error.to_string())
        };
        let help = "how account of lent frames is kept: by a counter for each frame (off), or by \
                    a ledger for each borrower (on)";
        let current = move || name_of(ACCOUNTING, reader.accounting()).to_owned();
        Knob::new("lend.autorelease", help, Values::one_of(["off", "on"]), "off", current, set)
    }
}

impl Beside for Status {
    fn register(&self, registry: &Registry) -> Result<(), knobs::Error> {
        registry.register(self.knob())?;
        for (name, unit, help, read) in COUNTS {
            let lender = Arc::clone(&self.lender);
            let read = move || read(&lender.counters());
            registry.counter(&format!("lend.{name}"), unit, help, read)?;
        }
        for (reason, _) in Refusals::default().by_reason() {
            let lender = Arc::clone(&self.lender);
            let read = move || of_reason(lender.counters().refused.by_reason(), reason);
            let help = "Connections that did not become borrowers.";
            registry.counter(&format!("lend.refused.{reason}"), "connections", help, read)?;
        }
        for (reason, _) in Offences::default().by_reason() {
            let lender = Arc::clone(&self.lender);
            let read = move || of_reason(lender.counters().offences.by_reason(), reason);
            let help = "What borrowers did that no honest one does.";
            registry.counter(&format!("lend.offences.{reason}"), "offences", help, read)?;
        }
        let lender = Arc::clone(&self.lender);
        let read = move || lender.counters().on_loan;
        registry.gauge("lend.on_loan", "frames", "Frames that borrowers have.", read)?;
        let lender = Arc::clone(&self.lender);
        let read = move || lender.borrowers().len() as u64;
        registry.gauge("lend.borrowers", "borrowers", "Borrowers that are there.", read)?;
        let lender = Arc::clone(&self.lender);
        let read = move || lender.counters().lingering;
        let help = "Borrowers that left and hold the memory that was made for them.";
        registry.gauge("lend.lingering", "borrowers", help, read)
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
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = self.lender.borrowers();
    }

    fn add_to(&self, more: &mut More) {
        let counters = self.lender.counters();
        let borrowers = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        more.lines.push(format!(
            "lent {}, returned {}, reclaimed from who went {}, dropped at borrowers with their \
             quota {}, for nobody {}",
            counters.lent,
            counters.returned,
            counters.reclaimed,
            counters.dropped,
            counters.unwanted
        ));
        more.lines.push(format!(
            "borrowers: {} joined, {} left, {} disconnected, {} there at the end",
            counters.joined,
            counters.left,
            counters.disconnected,
            borrowers.len()
        ));
        more.lines.extend(borrowers.iter().map(line));
        for (what, by_reason) in [
            ("refused", named(counters.refused.by_reason())),
            ("offences", named(counters.offences.by_reason())),
        ] {
            if !by_reason.is_empty() {
                more.lines.push(format!("{what}: {by_reason}"));
            }
        }
        let mut lend = figures(&counters);
        lend.insert("autorelease".into(), name_of(ACCOUNTING, self.lender.accounting()).into());
        more.fields.insert("lend".into(), lend.into());
        more.fields.insert("borrowers".into(), borrowers.iter().map(object).collect());
    }
}

fn figures(counters: &LenderCounters) -> Map<String, Value> {
    let counts =
        COUNTS.iter().map(|(name, _, _, read)| ((*name).to_owned(), read(counters).into()));
    let mut figures: Map<String, Value> = counts.collect();
    figures.insert("on_loan".into(), counters.on_loan.into());
    figures.insert("lingering".into(), counters.lingering.into());
    let by_reason = |reasons: Vec<(&str, u64)>| -> Value {
        reasons.into_iter().map(|(name, n)| (name.to_owned(), Value::from(n))).collect()
    };
    figures.insert("refused".into(), by_reason(counters.refused.by_reason().collect()));
    figures.insert("offences".into(), by_reason(counters.offences.by_reason().collect()));
    figures
}

fn of_reason(mut reasons: impl Iterator<Item = (&'static str, u64)>, reason: &str) -> u64 {
    reasons.find(|(name, _)| *name == reason).map_or(0, |(_, count)| count)
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

//! The lender's knob and counters, as `cachelane knob` shows them.

use std::convert::Infallible;
use std::sync::Arc;

use frames::Accounting;
use knobs::MeterKind::{Counter, Gauge};
use knobs::{Knob, Registry};

use crate::{Lender, LenderCounters, Offences, Refusals, Standing};

/// Adds the knob `lend.autorelease`, what there is now, and every counter, to `registry`. The
/// registry holds on to the lender.
///
/// # Errors
/// A name that the registry holds already.
pub fn register(lender: &Arc<Lender>, registry: &Registry) -> Result<(), knobs::Error> {
    registry.register(autorelease_knob(lender))?;
    let from = Arc::clone(lender);
    let read = move || Ok::<_, Infallible>(from.standing().values());
    registry.meters(Gauge, "lend", Standing::FIELDS, read)?;
    let from = Arc::clone(lender);
    let read = move || Ok::<_, Infallible>(from.counters().values());
    registry.meters(Counter, "lend", LenderCounters::FIELDS, read)?;
    let from = Arc::clone(lender);
    let read = move || Ok::<_, Infallible>(from.refusals().values());
    registry.meters(Counter, "lend.refused", Refusals::FIELDS, read)?;
    let from = Arc::clone(lender);
    let read = move || Ok::<_, Infallible>(from.offences().values());
    registry.meters(Counter, "lend.offences", Offences::FIELDS, read)
}

fn autorelease_knob(lender: &Arc<Lender>) -> Knob {
    let (reader, writer) = (Arc::clone(lender), Arc::clone(lender));
    let help = "how account of lent frames is kept: by a counter for each frame (off), or by a \
                ledger for each borrower (on)";
    let get = move || Ok(reader.accounting() == Accounting::Ledgers);
    let set = move |on| {
        writer.set_accounting(if on { Accounting::Ledgers } else { Accounting::Counters })
    };
    Knob::off_on("lend.autorelease", help, false, get, set)
}

//! What can be measured here, and what cannot, with the reason.

use trial::Better;

use crate::pmu::{self, Events};
use crate::quantity::{KNOWN, Known, Of};
use crate::source::{self, Source, all_counters, quantity};
use crate::spec::Named;
use crate::{Kind, Quantity, Result};

/// A quantity that can be asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The quantity; in its name stand `[@CPUS]`, `@PID` and the like for what can or must follow.
    pub quantity: Quantity,
    /// Which direction is the good one; where none is known, a measure has to say it.
    pub better: Option<Better>,
    /// Why it cannot be read here, if it cannot.
    pub absent: Option<String>,
}

/// All quantities that have names, tried out; of cachelane processes, those that run.
///
/// # Errors
/// Those of looking for cachelane processes.
pub fn list() -> Result<Vec<Listed>> {
    let mut listed: Vec<Listed> = KNOWN.iter().map(known).collect();
    listed.extend(pmu::names().into_iter().map(event));
    listed.push(Listed {
        quantity: Quantity {
            name: "prom:URL:SELECTOR".into(),
            unit: String::new(),
            help: "a metric of a Prometheus endpoint; p99: before it for a histogram's quantile"
                .into(),
            kind: Kind::Total,
        },
        better: None,
        absent: None,
    });
    for (_, readings) in all_counters()? {
        let counter = |reading: &knobs::Reading| {
            let quantity = quantity(format!("counter:{}", reading.name), reading);
            Listed { quantity, better: None, absent: None }
        };
        for counter in readings.iter().map(counter) {
            if !listed.contains(&counter) {
                listed.push(counter);
            }
        }
    }
    Ok(listed)
}

fn known(known: &'static Known) -> Listed {
    // Any will do to see whether the host has such figures.
    let of = match known.of {
        Of::Host | Of::Cpus | Of::Device => None,
        Of::Process => Some(std::process::id().to_string()),
        Of::Cgroup => Some("/".into()),
    };
    let opened = source::open(known.family, &[Named { known, of }]);
    let read = opened.and_then(|mut source| source.read());
    Listed {
        quantity: known.quantity(format!("{}{}", known.name, known.of.written())),
        better: known.better,
        absent: read.err().map(|error| error.to_string()),
    }
}

fn event(name: String) -> Listed {
    let opened = Events::open(std::slice::from_ref(&name));
    let read = opened.and_then(|mut events| events.read());
    Listed {
        quantity: Events::quantity(&name),
        better: pmu::better(&name),
        absent: read.err().map(|error| error.to_string()),
    }
}

#[test]
fn every_quantity_is_there_or_its_reason() {
    let listed = list().unwrap();
    let absent = |name: &str| {
        let listed = listed.iter().find(|listed| listed.quantity.name == name);
        listed.unwrap_or_else(|| panic!("{name}: {listed:?}")).absent.clone()
    };
    for name in ["cpu.busy[@CPUS]", "switches", "memory.used", "tcp.retransmits", "process.cpu@PID"]
    {
        assert_eq!(absent(name), None, "{name}");
    }
    for (name, file) in
        [("cpu.wait[@CPUS]", "/proc/schedstat"), ("pressure.io", "/proc/pressure/io")]
    {
        let reason = absent(name);
        let expected = std::fs::read(file).is_err();
        assert_eq!(reason.is_some(), expected, "{reason:?}");
        assert!(reason.is_none_or(|reason| reason.contains(file)));
    }
    assert!(absent("pmu:cycles").is_none_or(|reason| reason.starts_with("pmu:cycles: ")));
}

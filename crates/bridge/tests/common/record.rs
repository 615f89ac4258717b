//! What is written down of a run, and in what two runs differ.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::frame::Arrival;

/// One arm's run of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub steps: Vec<Step>,
    /// What was sent, by number.
    pub frames: Vec<String>,
}

/// What was seen in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub name: String,
    /// What arrived at each member, in the order of the numbers.
    pub arrived: Vec<Vec<Arrival>>,
    /// The kernel's forwarding table, a line an entry, sorted.
    pub table: Vec<String>,
    /// Whatever else the scenario wants to be the same.
    pub notes: Vec<String>,
}

impl Record {
    /// In what the other run differs from this one; none if in nothing. `ours` and `theirs` name
    /// the runs.
    pub fn difference(&self, ours: &str, other: &Record, theirs: &str) -> Option<String> {
        let mut text = String::new();
        for (index, (a, b)) in self.steps.iter().zip(&other.steps).enumerate() {
            if a == b {
                continue;
            }
            // Later steps follow from this one.
            let _ = writeln!(text, "step {} ({}), {ours} against {theirs}:", index + 1, a.name);
            if a.name != b.name {
                let _ = writeln!(text, "  it is ({}) in {theirs}", b.name);
            }
            for (member, (a, b)) in a.arrived.iter().zip(&b.arrived).enumerate() {
                let late = |id: u32| {
                    let later = other.steps[index + 1..]
                        .iter()
                        .find(|step| step.arrived[member].iter().any(|arrival| arrival.id == id));
                    later.map_or(String::new(), |step| format!(", late, in ({})", step.name))
                };
                self.arrivals(&mut text, member, &occurrences(a), &occurrences(b), late);
            }
            lines(&mut text, "table", &a.table, &b.table);
            lines(&mut text, "note", &a.notes, &b.notes);
            return Some(text);
        }
        let (a, b) = (self.steps.len(), other.steps.len());
        (a != b).then(|| format!("{a} steps in {ours}, {b} in {theirs}"))
    }

    fn arrivals(
        &self,
        text: &mut String,
        member: usize,
        a: &Counted<'_>,
        b: &Counted<'_>,
        late: impl Fn(u32) -> String,
    ) {
        let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
        for key in keys {
            let (a, b) = (a.get(*key).unwrap_or(&0), b.get(*key).unwrap_or(&0));
            if a == b {
                continue;
            }
            let word = if a > b { "missing" } else { "extra" };
            let sent = self.frames.get(key.id as usize).map_or("never sent", String::as_str);
            let _ = writeln!(
                text,
                "  member {member}: {word}: frame {} as {:?}, {} bytes, hash {:016x} ({a} times, \
                 then {b}{}): {sent}",
                key.id,
                key.to,
                key.len,
                key.hash,
                late(key.id),
            );
        }
    }
}

type Counted<'a> = BTreeMap<&'a Arrival, usize>;

fn occurrences(arrived: &[Arrival]) -> Counted<'_> {
    arrived.iter().fold(BTreeMap::new(), |mut counts, arrival| {
        *counts.entry(arrival).or_default() += 1;
        counts
    })
}

fn lines(text: &mut String, what: &str, a: &[String], b: &[String]) {
    for line in a.iter().filter(|line| !b.contains(line)) {
        let _ = writeln!(text, "  {what}: missing: {line}");
    }
    for line in b.iter().filter(|line| !a.contains(line)) {
        let _ = writeln!(text, "  {what}: extra: {line}");
    }
    if a.len() != b.len() {
        let _ = writeln!(text, "  {what}: {} lines, then {}", a.len(), b.len());
    }
}

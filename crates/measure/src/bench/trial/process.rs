//! A `cachelane trial` process, as a user would run it: what it says, and what it costs.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use lab::ErrorKind;
use rustix::param::clock_ticks_per_second;
use serde_json::Value;

use super::Ground;
use crate::bench::command;
use crate::bench::experiment::Now;

/// The exit status of a trial without a verdict.
const INCONCLUSIVE: i32 = 5;
/// The verdict of a trial that a guard has ended, which fails.
const GUARDED: &str = "guarded";
/// How long it may take to end when it was asked to.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often to look whether somebody asked the bench to stop.
const LOOK: Duration = Duration::from_millis(200);

/// What a trial said.
#[derive(Debug)]
pub(super) struct Tried {
    /// Of the second arm, by the first measure: `better`, `worse`, `no_difference`, `inconclusive` or
    /// `withheld`; `guarded` if a guard ended it.
    pub(super) verdict: String,
    /// From its start to its end.
    pub(super) wall: Duration,
    /// CPU time of the process and of those that it started.
    pub(super) cpu: Duration,
}

impl Tried {
    /// Whether it called a difference.
    pub(super) fn is_difference(&self) -> bool {
        matches!(&*self.verdict, "better" | "worse")
    }
}

/// Runs `cachelane trial` with these arguments on the server's host, within this time and some
/// patience.
pub(super) fn run(
    ground: &Ground,
    now: &mut Now<'_>,
    args: &str,
    time: Duration,
) -> anyhow::Result<Tried> {
    let host = &ground.link.b.host;
    // A file, which takes however much it prints.
    let path = ground.lab.dir().join("trial.json");
    let stdout = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let args = format!("trial {args} --json --seed {}", rand::RngExt::random::<u32>(now.rng));
    let (begun, before) = (Instant::now(), cpu_of_children()?);
    let mut process = command::start(&ground.lab, host, &args, stdout.into())?;
    let until = begun + 2 * time + command::PATIENCE;
    let status = loop {
        match process.wait_within(LOOK) {
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            status => break status?,
        }
        if now.stop.is_asked() || Instant::now() > until {
            // It puts the knob back.
            process.stop(PATIENCE)?;
            now.stop.check()?;
            bail!("cachelane {args} did not end within {:?}", until - begun);
        }
    };
    let (wall, cpu) = (begun.elapsed(), cpu_of_children()? - before);
    let printed = fs::read(&path)?;
    let json: Option<Value> = serde_json::from_slice(&printed).ok();
    let verdict = json.as_ref().and_then(verdict);
    let is_guarded = verdict.as_deref() == Some(GUARDED);
    let fine = status.success() || status.code() == Some(INCONCLUSIVE) || is_guarded;
    ensure!(fine, "cachelane {args} ended with {status}");
    let verdict =
        verdict.with_context(|| format!("no verdict in what cachelane {args} printed"))?;
    let judged = json.as_ref().map(|json| json["judged"][0].to_string()).unwrap_or_default();
    tracing::debug!("{args}: {verdict}: {judged}");
    Ok(Tried { verdict, wall, cpu })
}

/// The verdict that decides.
fn verdict(json: &Value) -> Option<String> {
    if json["ended"]["guard"].is_object() {
        return Some(GUARDED.into());
    }
    let judged = json["judged"].as_array()?;
    let first = judged.iter().find(|judged| judged["measure"] == 0 && judged["arm"] == 1)?;
    first["verdict"].as_str().map(str::to_owned)
}

/// CPU time of all children of this process that have ended, and of theirs.
fn cpu_of_children() -> anyhow::Result<Duration> {
    const PATH: &str = "/proc/self/stat";
    let text = fs::read_to_string(PATH).context(PATH)?;
    let ticks = parse_children(&text).with_context(|| format!("{PATH}: unexpected contents"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
}

/// Ticks: `cutime` and `cstime`, the fields 16 and 17.
fn parse_children(stat: &str) -> Option<u64> {
    // The name, in brackets, can hold anything; the field after it is the third.
    let (_, rest) = stat.rsplit_once(") ")?;
    let ticks: Vec<u64> =
        rest.split(' ').skip(13).take(2).map_while(|field| field.parse().ok()).collect();
    (ticks.len() == 2).then(|| ticks.iter().sum())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_time_of_children_is_read_past_any_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 130 14 15 16";
        assert_eq!(parse_children(stat), Some(144));
        assert_eq!(parse_children("7 (a) S 1 2"), None);
        let before = cpu_of_children().unwrap();
        let spin = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", spin]).status().unwrap().success());
        assert!(cpu_of_children().unwrap() > before);
    }

    #[test]
    fn the_first_measure_and_the_second_arm_decide() {
        let judged = |measure: usize, arm: usize, verdict: &str| json!({"measure": measure, "arm": arm, "verdict": verdict});
        let all = json!({"judged": [judged(1, 1, "worse"), judged(0, 1, "better")]});
        assert_eq!(verdict(&all).as_deref(), Some("better"));
        assert_eq!(verdict(&json!({"judged": [judged(1, 1, "worse")]})), None);
        assert_eq!(verdict(&json!({})), None);
        let guarded = json!({"judged": [], "ended": {"guard": {"measure": 1, "arm": 1}}});
        assert_eq!(verdict(&guarded).as_deref(), Some(GUARDED));
    }
}

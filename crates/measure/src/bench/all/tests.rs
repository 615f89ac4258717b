use super::*;
use crate::bench::claim::Claim;
use crate::bench::experiment::{Measure, Part, Step, Time};
use crate::bench::found::Found;

const NAMES: [&str; 4] = ["good", "broken at once", "panics", "broken late"];

/// A made-up experiment, of the kind that it is called after.
struct Made<const KIND: usize>;

impl<const KIND: usize> Experiment for Made<KIND> {
    type Ground = ();
    const NAME: &'static str = NAMES[KIND];
    const EXTENT: (usize, Duration) = (6, Duration::from_secs(1));

    fn parts(&self) -> Vec<Part<()>> {
        let time = Time { once: 0.0, steps: 2, windows: 0.0, more: 0.0 };
        let part = Part::new("all", "a and b", time)
            .claims([Claim::ratio("a / b", "a", "b")])
            .stage(|(), _| {
                let step = |case: &&str| Step::of(*case, "s");
                Ok(Measure::new(["a", "b"], step, |case, now| match NAMES[KIND] {
                    "broken at once" => anyhow::bail!("no such thing"),
                    "panics" => panic!("as this test wants it"),
                    "broken late" if now.round == 2 => anyhow::bail!("worn out"),
                    _ => Ok(vec![if *case == "a" { 1.0 } else { 2.0 }]),
                }))
            });
        let last = Part::new("last", "c and d", time).claims([Claim::ratio("c / d", "c", "d")]);
        vec![part, last]
    }

    fn ground(&self, _: &mut Found) -> anyhow::Result<()> {
        Ok(())
    }
}

fn all() -> All {
    All { only: Vec::new(), rounds: Some(6), window: None, seed: 1, quiet: true }
}

fn run_made(
    all: &All,
    keep: impl FnMut(&Bundle) -> anyhow::Result<()>,
) -> (Bundle, Option<anyhow::Error>) {
    let made: [Box<dyn AnyExperiment>; 4] =
        [Box::new(Made::<1>), Box::new(Made::<2>), Box::new(Made::<3>), Box::new(Made::<0>)];
    let bundle = Bundle::new("a test".into()).unwrap();
    run_each(&made, all, bundle, &Stop::on_signals().unwrap(), keep).unwrap()
}

#[test]
fn what_fails_costs_itself_and_the_rest_runs() {
    let mut kept = Vec::new();
    let (bundle, error) = run_made(&all(), |bundle| {
        // As it was read where it had been written and the machine had died then.
        kept.push(Bundle::read(&serde_json::to_string(bundle)?)?);
        Ok(())
    });
    let begun =
        |bundle: &Bundle| bundle.experiments.iter().filter(|entry| entry.seconds.is_some()).count();
    assert_eq!(kept.iter().map(begun).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(kept.iter().all(|bundle| bundle.incomplete && bundle.experiments.len() == 4));
    assert_eq!(kept[3], bundle);
    assert_eq!(kept[0].experiments[3].why_absent("a / b"), "the run ended before it");

    let [at_once, panics, late, good] = &*bundle.experiments else { panic!("{bundle:#?}") };
    let reason = at_once.why_absent("a / b");
    assert!(reason.starts_with("part all: ") && reason.ends_with(": no such thing"), "{reason}");
    assert_eq!(at_once.output, None);
    assert_eq!((&panics.output, panics.why_absent("a / b")), (&None, "it panicked"));
    let ratios = |entry: &Entry| entry.output.as_ref().map(|output| output.ratios.clone());
    let [late_ratio] = &*ratios(late).unwrap() else { panic!("{late:#?}") };
    assert_eq!((late_ratio.median, late_ratio.runs), (0.5, 2));
    assert!(late.why_absent("c / d").ends_with(": worn out"), "{late:#?}");
    let [good_ratio] = &*ratios(good).unwrap() else { panic!("{good:#?}") };
    assert_eq!((good_ratio.median, good_ratio.runs), (0.5, 6));
    assert_eq!(good_ratio.verdict, Some(trial::Verdict::Better), "seconds: less is better");
    assert_eq!(good.why_absent("c / d"), "'c' was not measured");
    let error = format!("{:#}", error.unwrap());
    assert!(error.starts_with("3 of 4 experiments failed: broken at once: part all"), "{error}");
}

#[test]
fn those_that_were_asked_for_run_as_it_was_said() {
    let all = All { only: vec!["good".into()], rounds: Some(2), ..all() };
    let (bundle, error) = run_made(&all, |_| Ok(()));
    assert!(error.is_none() && !bundle.incomplete);
    let [good] = &*bundle.experiments else { panic!("{bundle:#?}") };
    assert_eq!((good.rounds, good.window_s, good.short), (2, 1.0, true));
    assert!(good.output.as_ref().unwrap().cases.iter().all(|case| case.runs.len() == 2));
}

#[test]
fn a_bundle_that_cannot_be_kept_is_tried_to_be_kept_again() {
    let mut tries = 0;
    let (bundle, _) = run_made(&all(), |_| {
        tries += 1;
        anyhow::bail!("no space left")
    });
    assert_eq!((tries, bundle.experiments[3].is_incomplete()), (4, false));
}

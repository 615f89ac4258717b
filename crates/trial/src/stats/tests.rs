use super::*;

/// Compares plain numbers.
fn compare(base: &[f64], other: &[f64], rules: &Rules) -> Result<Comparison, Error> {
    let parts = |values: &[f64]| values.iter().copied().map(Part::from).collect::<Vec<_>>();
    super::compare(&parts(base), &parts(other), rules)
}

fn rules(better: Better) -> Rules {
    Rules { better, margin: 0.01, confidence: 0.95, share: 1.0, seed: 1 }
}

/// n values around `centre`, a percent apart at most.
fn around(centre: f64, n: usize) -> Vec<f64> {
    (0..n).map(|i| centre * (1.0 + 0.002 * ((i * 7 % 5) as f64 - 2.0))).collect()
}

#[test]
fn verdict_follows_the_good_direction() {
    let (low, high) = (around(100.0, 10), around(110.0, 10));
    for (base, other, better, expected) in [
        (&low, &high, Better::Higher, Verdict::Better),
        (&low, &high, Better::Lower, Verdict::Worse),
        (&high, &low, Better::Higher, Verdict::Worse),
        (&high, &low, Better::Lower, Verdict::Better),
        (&low, &low, Better::Higher, Verdict::NoDifference),
    ] {
        let found = compare(base, other, &rules(better)).unwrap();
        assert_eq!(found.verdict, expected, "{found:?}");
    }
}

#[test]
fn a_certain_difference_within_the_margin_is_none() {
    let base = vec![1000.0; 20];
    let other: Vec<f64> = (0..20).map(|i| 1003.0 + f64::from(i % 3)).collect();
    let found = compare(&base, &other, &rules(Better::Higher)).unwrap();
    assert!(found.p < 0.001);
    assert_eq!(found.verdict, Verdict::NoDifference);
}

#[test]
fn five_blocks_that_agree_are_not_enough() {
    let five = compare(&[1.0; 5], &[2.0; 5], &rules(Better::Higher)).unwrap();
    assert_eq!((five.p, five.interval), (2.0 / 32.0, None));
    assert_eq!(five.verdict, Verdict::Inconclusive);
    assert_eq!(five.ratio, Some(2.0));
    assert_eq!(five.note.as_deref(), Some("5 blocks are too few for an interval"));
    let six = compare(&[1.0; 6], &[2.0; 6], &rules(Better::Higher)).unwrap();
    assert_eq!((six.p, six.verdict), (2.0 / 64.0, Verdict::Better));
}

#[test]
fn a_smaller_share_of_the_budget_asks_for_more_evidence() {
    let share = |share| Rules { share, ..rules(Better::Higher) };
    let found = compare(&[1.0; 8], &[2.0; 8], &share(0.1)).unwrap();
    assert_eq!((found.verdict, found.interval), (Verdict::Inconclusive, None));
    assert_eq!(found.p, 20.0 / 256.0);
    let found = compare(&[1.0; 12], &[2.0; 12], &share(0.1)).unwrap();
    assert_eq!(found.verdict, Verdict::Better);
}

#[test]
fn blocks_without_events_are_blocks_like_any_other() {
    let base = [8.0, 0.0, 10.0, 9.0, 0.0, 11.0, 7.0, 9.0, 12.0, 10.0];
    let other = [1.0, 0.0, 2.0, 0.0, 0.0, 1.0, 1.0, 0.0, 2.0, 1.0];
    let found = compare(&base, &other, &rules(Better::Lower)).unwrap();
    assert!((found.ratio.unwrap() - 8.0 / 76.0).abs() < 1e-12);
    let Interval { low, high } = found.interval.unwrap();
    assert!(low < 8.0 / 76.0 && 8.0 / 76.0 < high && high < 0.3, "{low} {high}");
    assert_eq!((found.verdict, found.blocks), (Verdict::Better, 10));
}

/// Bursts: in a busy window there is ten times the work, and each piece of it costs less.
fn bursts(cost: f64) -> Vec<Part> {
    let work = |i: usize| if i.is_multiple_of(4) { 1000.0 } else { 100.0 + i as f64 };
    let part = |i| Part { num: cost * work(i).powf(0.8), den: work(i) };
    (0..20).map(part).collect()
}

#[test]
fn a_ratio_of_sums_weighs_a_window_by_what_it_holds() {
    let (base, mut other) = (bursts(1.0), bursts(1.0));
    // Dearer where much is done, cheaper where little is done.
    for (i, part) in other.iter_mut().enumerate() {
        part.num *= if i.is_multiple_of(4) { 1.1 } else { 0.9 };
    }
    let found = super::compare(&base, &other, &rules(Better::Lower)).unwrap();
    let cost = |parts: &[Part]| {
        let (num, den): (f64, f64) =
            parts.iter().fold((0.0, 0.0), |(n, d), part| (n + part.num, d + part.den));
        num / den
    };
    let expected = cost(&other) / cost(&base);
    assert!(expected > 1.0, "{expected}");
    assert!((found.ratio.unwrap() - expected).abs() < 1e-12, "{found:?}");
}

#[test]
fn denominators_that_differ_between_arms_do_not_bias() {
    // The arm got twice the work in every other block, at the same cost.
    let base =
        bursts(1.0).iter().map(|p| Part { num: 2.0 * p.den, den: p.den }).collect::<Vec<_>>();
    let mut other = base.clone();
    other.iter_mut().step_by(2).for_each(|p| *p = Part { num: 2.0 * p.num, den: 2.0 * p.den });
    let found = super::compare(&base, &other, &rules(Better::Lower)).unwrap();
    assert_eq!(found.verdict, Verdict::NoDifference, "{found:?}");
    assert!((found.ratio.unwrap() - 1.0).abs() < 1e-12);
}

#[test]
fn a_baseline_of_zero_has_no_ratio_but_a_verdict() {
    let found = compare(&[0.0; 10], &[5.0; 10], &rules(Better::Lower)).unwrap();
    assert_eq!((found.ratio, found.interval), (None, None));
    assert_eq!(found.verdict, Verdict::Worse);
    assert!(found.note.unwrap().contains("no ratio"));
}

#[test]
fn zero_throughout_is_inconclusive_and_says_so() {
    let found = compare(&[0.0; 10], &[0.0; 10], &rules(Better::Lower)).unwrap();
    assert_eq!((found.ratio, found.p), (None, 1.0));
    assert_eq!(found.verdict, Verdict::Inconclusive);
    assert_eq!(found.note.as_deref(), Some("zero in every window of both arms"));
}

#[test]
fn an_arm_that_drops_to_zero_is_a_difference() {
    let found = compare(&[5.0; 10], &[0.0; 10], &rules(Better::Lower)).unwrap();
    assert_eq!(found.ratio, Some(0.0));
    assert_eq!(found.verdict, Verdict::Better);
}

#[test]
fn identical_arms_make_no_difference() {
    for blocks in [6, 40] {
        let values = vec![3.0; blocks];
        let found = compare(&values, &values, &rules(Better::Higher)).unwrap();
        assert_eq!((found.ratio, found.p), (Some(1.0), 1.0));
        assert_eq!(found.verdict, Verdict::NoDifference);
    }
}

#[test]
fn swapping_the_arms_inverts_the_ratio_and_keeps_p() {
    for blocks in [9, 30] {
        let base = around(50.0, blocks);
        let other: Vec<f64> = (0..blocks).map(|i| 51.0 + (i % 4) as f64).collect();
        let there = compare(&base, &other, &rules(Better::Higher)).unwrap();
        let back = compare(&other, &base, &rules(Better::Higher)).unwrap();
        assert!((there.ratio.unwrap() * back.ratio.unwrap() - 1.0).abs() < 1e-12);
        assert!((there.p - back.p).abs() < 1e-12);
        let (there, back) = (there.interval.unwrap(), back.interval.unwrap());
        assert!((there.low * back.high - 1.0).abs() < 1e-6, "{there:?} {back:?}");
    }
}

#[test]
fn bad_values_are_named() {
    for (base, other, kind, expected) in [
        (vec![], vec![], ErrorKind::TooFewBlocks, "not one pair"),
        (vec![1.0], vec![], ErrorKind::InvalidData, "got 1 and 0"),
        (vec![1.0, 2.0], vec![1.0, f64::NAN], ErrorKind::InvalidData, "pair 2 holds NaN"),
        (vec![-1.0], vec![1.0], ErrorKind::InvalidData, "pair 1 holds -1"),
        (vec![1.0], vec![f64::INFINITY], ErrorKind::InvalidData, "pair 1 holds inf"),
    ] {
        let error = compare(&base, &other, &rules(Better::Higher)).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(expected), "'{error}' lacks '{expected}'");
    }
}

use super::*;
use crate::bench::Bar;
use crate::measure::Better;
use crate::stats::{Comparison, Rules, paired_ratio};
use crate::value::Part;

/// Compares plain numbers.
fn compare(base: &[f64], other: &[f64], rules: &Rules) -> Comparison {
    let parts = |values: &[f64]| values.iter().copied().map(Part::from).collect::<Vec<_>>();
    crate::stats::compare(&parts(base), &parts(other), rules).unwrap()
}

/// A row whose baseline is around `base` and whose arm is `effect` times that.
fn row(mechanism: &str, unit: &str, base: f64, effect: f64) -> Row {
    let wobble = |i: u32| 1.0 + 0.002 * (f64::from(i * 7 % 5) - 2.0);
    let bases: Vec<f64> = (0..10).map(|i| base * wobble(i)).collect();
    let others: Vec<f64> = (0..10).map(|i| base * effect * wobble(i + 3)).collect();
    let rules =
        Rules { better: Better::Higher, margin: 0.01, confidence: 0.95, share: 1.0, seed: 1 };
    let dots = |(block, (&a, &b)): (u32, (&f64, &f64))| {
        [(false, a), (true, b), (true, b), (false, a)].map(|(is_other, value)| Dot {
            block,
            is_other,
            value,
        })
    };
    Row {
        mechanism: mechanism.into(),
        measure: Measure::new("rate", unit, Better::Higher),
        arms: ["off".into(), "on".into()],
        comparison: compare(&bases, &others, &rules),
        margin: rules.margin,
        confidence: rules.confidence,
        is_first: true,
        windows: (0..).zip(bases.iter().zip(&others)).flat_map(dots).collect(),
        hosts: Vec::new(),
        prediction: None,
        detail: String::new(),
    }
}

fn page() -> Page {
    Page {
        title: "A trial".into(),
        lead: "One paragraph.".into(),
        rows: vec![row("relay", "B/s", 9e8, 2.5), row("bridge", "pps", 8e5, 1.0)],
        command: "cachelane demo --seed 7".into(),
        ..Page::default()
    }
}

fn bench_page() -> Page {
    let (ours, theirs) = ([2.4, 2.5, 2.3, 2.4, 2.6, 2.5], [1.0, 1.1, 0.9, 1.0, 1.2, 1.0]);
    let ratio = paired_ratio(&theirs, &ours).unwrap();
    let mut output = BenchOutput::new("relay", Host::default());
    output.cases = vec![
        Case::new("ours", "GB/s", ours.to_vec()),
        Case::new("theirs", "GB/s", theirs.to_vec()),
        Case::new("broken", "ms", vec![]),
    ];
    output.ratios = vec![
        RatioOut::new("ours / theirs", &ratio).with_bar(Bar::AtLeast(2.0)),
        RatioOut::new("again", &ratio).with_bar(Bar::AtMost(2.0)),
    ];
    output.absent = vec!["nginx: not installed".into()];
    Page::from_bench(&output, "cachelane bench relay")
}

/// What is between a page's tags.
fn texts(html: &str) -> String {
    let body = html.split_once("</style>").unwrap().1;
    body.split('<').filter_map(|part| part.split_once('>')).map(|(_, text)| text).collect()
}

#[test]
fn a_bar_with_two_sides_is_drawn_as_two_lines() {
    let ratio = paired_ratio(&[1.0; 6], &[0.0; 6]).unwrap();
    let mut output = BenchOutput::new("steer", Host::default());
    output.ratios = vec![RatioOut::new("on / off", &ratio).with_bar(Bar::Between(0.95, 1.05))];
    let html = Page::from_bench(&output, "cachelane bench steer").render();
    assert_eq!(html.matches("<line class=\"bar\"").count(), 2);
    assert!(html.contains("between 0.95 and 1.05: not met") && !html.contains("NaN"), "{html}");
}

#[test]
fn a_page_of_trials_says_what_was_found_and_how_to_repeat_it() {
    let text = texts(&page().render());
    for expected in [
        "A trial",
        "One paragraph.",
        "relay, rate",
        "900 MB/s",
        "2.25 GB/s",
        "2.50 [2.4",
        "better",
        "no difference",
        "10 blocks, p = 0.002, margin ±1 %",
        "cachelane demo --seed 7",
    ] {
        assert!(text.contains(expected), "no '{expected}' in {text}");
    }
}

#[test]
fn a_page_of_a_bench_shows_cases_claims_and_what_was_absent() {
    let text = texts(&bench_page().render());
    for expected in [
        "Bench: relay",
        "2.45 GB/s",
        "no runs",
        "at least 2: met",
        "at most 2: not met",
        "nginx: not installed",
    ] {
        assert!(text.contains(expected), "no '{expected}' in {text}");
    }
}

/// Two lines by connections, one of whose points was not measured.
fn growing_page() -> Page {
    let mut page = bench_page();
    let mut lines = Vec::new();
    for (name, values) in [("ours", [9.0, 8.0, 5.0]), ("theirs", [7.0, 5.0, 0.5])] {
        let mut points = Vec::new();
        for (at, value) in [10.0, 100.0, 10_000.0].into_iter().zip(values) {
            let case = format!("rate, {at} connections, {name}");
            page.cases.push(Case::new(&case, "1/s", vec![value, value * 1.1]));
            points.push(crate::bench::Point { at, case });
        }
        points.push(crate::bench::Point { at: 20_000.0, case: "not there".into() });
        lines.push(crate::bench::Line { name: name.into(), points });
    }
    let [name, along] = ["rate", "connections"].map(String::from);
    page.curves = vec![
        crate::bench::Curve { name, along, lines },
        crate::bench::Curve { name: "never measured".into(), along: "x".into(), lines: vec![] },
    ];
    page
}

#[test]
fn curves_are_drawn_through_what_was_measured() {
    let html = growing_page().render();
    let text = texts(&html);
    for expected in ["Growth", "by connections", "10000", "ours, 10000 connections: 5.25"] {
        assert!(text.contains(expected), "no '{expected}' in {text}");
    }
    for missing in ["20000", "never measured", "not there"] {
        assert!(!text.contains(missing), "{missing}");
    }
    // Two lines with three points, and so two segments, each.
    assert_eq!(html.matches("class=\"reach\"").count(), 6, "{html}");
    let lines =
        html.split("<g class=\"curve look").skip(1).filter_map(|rest| rest.split("</g>").next());
    let segments: Vec<_> = lines.map(|line| line.matches("<line x1").count()).collect();
    assert_eq!(segments, [2, 2], "{html}");
    assert!(!texts(&bench_page().render()).contains("Growth"));
}

#[test]
fn every_text_is_escaped() {
    let evil = "<script>alert(\"1\")</script>&'";
    let mut page = Page { title: evil.into(), lead: evil.into(), command: evil.into(), ..page() };
    page.host = Some(Host { kernel: evil.into(), cpu: evil.into(), ..Host::default() });
    page.notes = vec![evil.into()];
    page.absent = vec![evil.into()];
    page.cases = vec![Case::new(evil, evil, vec![1.0, 2.0])];
    page.ratios = bench_page().ratios;
    page.ratios[0].name = evil.into();
    let row = &mut page.rows[0];
    row.mechanism = evil.into();
    row.measure = Measure::new(evil, evil, Better::Lower);
    row.arms = [evil.into(), evil.into()];
    row.comparison.note = Some(evil.into());
    let html = page.render();
    assert!(!html.contains("<script") && !html.contains("alert(\"") && !html.contains("&'"));
    assert!(html.matches("&#60;script&#62;").count() > 15, "the texts are there, escaped");
}

#[test]
fn a_page_needs_nothing_from_elsewhere() {
    for html in [page().render(), bench_page().render()] {
        for outside in ["http:", "https:", "src=", "href=", "url(", "@import", "<script"] {
            assert!(!html.contains(outside), "holds {outside}");
        }
    }
}

#[test]
fn every_plot_has_a_title_and_every_tag_is_closed() {
    for html in [page().render(), bench_page().render()] {
        let plots = html.matches("role=\"img\"").count();
        assert!(plots >= 3);
        assert_eq!(html.matches("<title>").count(), plots + 1, "one each, and the page's own");
        for tag in ["svg", "div", "section", "table", "tr", "td", "th", "figure", "span", "p"] {
            let opened = html.matches(&format!("<{tag} ")).count()
                + html.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "<{tag}>");
        }
    }
}

#[test]
fn trials_without_a_ratio_or_windows_draw_no_nonsense() {
    let rules =
        Rules { better: Better::Lower, margin: 0.01, confidence: 0.95, share: 1.0, seed: 1 };
    let mut page = page();
    for (base, other) in [(0.0, 0.0), (0.0, 5.0), (5.0, 0.0)] {
        let mut row = row("drops", "packets", 1.0, 1.0);
        row.comparison = compare(&[base; 8], &[other; 8], &rules);
        row.windows.iter_mut().for_each(|dot| dot.value = if dot.is_other { other } else { base });
        page.rows.push(row);
    }
    page.rows[0].windows.clear();
    let html = page.render();
    assert!(!html.contains("NaN") && !html.contains("inf"), "{}", texts(&html));
    assert!(texts(&html).contains("the baseline is zero in every window, so there is no ratio"));
    assert_eq!(html.matches("<figure>").count(), 4, "none for the row without windows");
}

#[test]
fn an_empty_page_has_a_headline_and_no_sections() {
    let html = Page { title: "Nothing".into(), ..Page::default() }.render();
    assert!(html.contains("<h1>Nothing</h1>") && !html.contains("<section>"));
}

#[test]
fn the_table_fits_a_terminal() {
    let mut page = page();
    page.rows.push(row("a mechanism with a name that nobody would want", "", 5e6, 0.9));
    let expected = "\
mechanism                    off         on  ratio [95 %]          verdict
relay, rate             900 MB/s  2.25 GB/s  2.50 [2.48, 2.51]     better
";
    let table = page.to_table(80, false);
    assert!(table.starts_with(expected), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(table.contains("a mechanism with a na…"), "{table}");
}

#[test]
fn arms_that_differ_from_row_to_row_are_named_in_the_cells() {
    let mut page = page();
    page.rows[1].arms = ["copy".into(), "splice".into()];
    let table = page.to_table(120, false);
    assert!(table.contains("off: 900 MB/s") && table.contains("copy: 800 kpps"), "{table}");
}

/// A trial of three arms by two measures, after a pilot; the second arm is a tenth faster.
fn record() -> crate::Record {
    use std::ops::ControlFlow;
    use std::time::Duration;

    use crate::{BoxError, Plan, Reach, Sample, Subject, pilot, run};

    struct Fake(usize, usize);
    impl Subject for Fake {
        fn measures(&self) -> Vec<Measure> {
            let rate = Measure::new("rate", "B/s", Better::Higher);
            vec![rate, Measure::new("drops", "packets", Better::Lower)]
        }
        fn set_arm(&mut self, arm: usize) -> Result<(), BoxError> {
            self.0 = arm;
            Ok(())
        }
        fn settle(&mut self, _: Duration) {}
        fn measure(&mut self, _: Duration) -> Result<Sample, BoxError> {
            self.1 += 1;
            let wobble = 1.0 + 0.002 * ((self.1 * 7 % 5) as f64 - 2.0);
            let rate = 9e8 * wobble * if self.0 == 1 { 1.1 } else { 1.0 };
            let values = vec![rate.into(), (3.0 * wobble).into()];
            let setting = Some(format!("{}", self.0));
            Ok(Sample { values, setting, exposure: Some(0.97), ..Sample::default() })
        }
    }
    let plan =
        Plan { blocks: 10, seed: 7, reach: Reach::Unknown, ..Plan::new(["off", "on", "auto"]) };
    let mut fake = Fake(0, 0);
    let on = |_: &crate::Step<'_>| ControlFlow::Continue(());
    let seen = pilot(&plan, &mut fake, 10, Duration::from_secs(2), on).unwrap();
    let outcome = run(&plan, &mut fake, on).unwrap();
    let outcome = Outcome { pilot: Some(seen), ..outcome };
    let notes = vec!["CPUs 2 and 3 are offline".into()];
    let record = crate::Record::new("relay.engine", "cachelane trial relay.engine", outcome, notes);
    crate::Record { started: 1.8e9, kept: Some("on".into()), ..record.unwrap() }
}

#[test]
fn a_page_of_a_record_says_what_was_run_how_and_what_came_out() {
    let page = Page::from_record(&record());
    let text = texts(&page.render());
    let terminal = page.to_text(100, false);
    for expected in [
        "Under on, rate is 1.10",
        "times what it is under off: better.",
        "10 blocks of 6 windows of 1s after 250ms to settle; margin ±1 %, confidence 95 %, seed 7",
        "as planned, after 10 of 10 blocks",
        "97.0 % of the work ran under its arm",
        "off: 0, on: 1, auto: 2",
        "10 blocks find one of ",
        "on held for long",
        "2027-01-15T08:00:00Z",
        "left in force",
        "CPUs 2 and 3 are offline",
    ] {
        assert!(text.contains(expected), "no '{expected}' in {text}");
        assert!(
            terminal.contains(expected) || page.lead.contains(expected),
            "{expected}: {terminal}"
        );
    }
    assert_eq!(text.matches("more is better; decides").count(), 2, "of each arm");
    assert_eq!(terminal.matches("(decides)").count(), 2, "{terminal}");
    assert!(text.contains("Repeat it") && text.contains("cachelane trial relay.engine"));
    assert!(terminal.starts_with("measure "), "{terminal}");
}

#[test]
fn what_never_happened_is_one_line() {
    let mut record = record();
    let none = crate::Comparison {
        base: 0.0,
        other: 0.0,
        ratio: None,
        ..record.judged[3].comparison.clone()
    };
    for judged in record.judged.iter_mut().filter(|judged| judged.measure == 1) {
        judged.comparison = none.clone();
    }
    let page = Page::from_record(&record);
    assert_eq!(page.rows.len(), 2, "the first measure stays");
    let quiet = format!("0 under every arm: {}", record.outcome.measures[1].name);
    assert_eq!(page.notes[0], quiet);
}

#[test]
fn a_record_without_judgements_still_has_a_page() {
    let mut record = record();
    (record.judged, record.outcome.windows, record.outcome.pilot) = (vec![], vec![], None);
    record.started = -1e300;
    let page = Page::from_record(&record);
    let text = texts(&page.render());
    assert!(text.contains("Nothing could be judged.") && text.contains("after 0 of 10 blocks"));
    assert!(!text.contains("Results") && !text.contains("NaN"));
}

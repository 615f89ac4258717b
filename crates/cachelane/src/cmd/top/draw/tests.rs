use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use crate::cmd::top::app::{Action, Replay};
use crate::cmd::top::collect::Closely;
use crate::cmd::top::marks::Marks;
use crate::cmd::top::sample::{Answer, End, Relay, Sample};
use crate::cmd::top::table::Facts;
use crate::cmd::top::testing::{process, relay, said, sample};

fn app(samples: impl IntoIterator<Item = Sample>) -> App {
    let facts = Facts { host: "host".into(), lanes: vec![vec![0], vec![1]] };
    let mut app = App::new(facts, Marks::UTF8, Duration::from_secs(1));
    samples.into_iter().for_each(|sample| app.take(sample));
    app
}

/// Relays with these process ids, each seen three times.
fn relays(pids: impl IntoIterator<Item = u32> + Clone) -> App {
    app([0, 1000, 2000].map(|ms| {
        sample(ms, pids.clone().into_iter().map(|pid| relay(pid, ms, pid.into())).collect())
    }))
}

fn drawn(app: &mut App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, app, false)).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(usize::from(width).max(1));
    lines.map(|cells| cells.iter().map(|cell| cell.symbol()).collect()).collect()
}

fn press(app: &mut App, code: KeyCode) -> Action {
    app.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn press_all(app: &mut App, keys: &str) {
    for key in keys.chars() {
        press(app, KeyCode::Char(key));
    }
}

/// The names in the rows, from the top.
fn names(app: &mut App, height: u16) -> Vec<String> {
    let lines = drawn(app, 80, height);
    let rows = lines.iter().filter_map(|line| line.strip_prefix("relay :"));
    rows.map(|row| row.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn a_screen_of_80_by_24_has_all_of_it() {
    let lines = drawn(&mut relays([8080, 9090]), 80, 24);
    let expected = [
        "cachelane top  host  23:00:02Z  every 1s   2 processes 100.0% of a CPU, top 1.0%",
        "lane 0    0 ████████ 100% us 25 sy 25 si 50",
        "lane 1    1            0% us  0 sy  0 si  0",
        "",
        "PROCESS     KIND   PID  CPU%   RSS RATES                                 HISTORY",
        "relay :8080 relay 8080  50.0   12M 8.08MB/s 10 conn/s 3 open                  ██",
        "relay :9090 relay 9090  50.0   12M 9.09MB/s 10 conn/s 3 open                  ██",
        "",
    ];
    for (line, expected) in lines.iter().zip(expected) {
        assert_eq!(line.trim_end(), expected);
    }
    let keys = "q:quit enter:detail s:sort(name) r:reverse /:filter p:freeze +-:interval ?:help";
    assert_eq!(lines[23].trim_end(), keys);
}

#[test]
fn a_screen_of_200_by_60_shows_more_of_names_and_histories() {
    let mut app = app((0..40).map(|s| {
        let name = format!("a relay with a long name {s}");
        let mut process = relay(8080, s * 1000, 5);
        process.name = name[..24].into();
        sample(s * 1000, vec![process])
    }));
    let lines = drawn(&mut app, 200, 60);
    assert_eq!(lines.len(), 60);
    let row = &lines[5];
    assert!(row.starts_with("a relay with a long name relay 8080  50.0   12M 5.00kB/s"), "{row}");
    assert!(row.ends_with(&"█".repeat(20)), "{row}");
}

#[test]
fn the_smallest_screens_show_what_fits() {
    let mut app = relays([8080]);
    let lines = drawn(&mut app, 40, 10);
    let rows: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    assert_eq!(rows[0], "cachelane top  host  23:00:02Z  every 1…");
    assert_eq!(rows[1], "all        2 CPUs  50% us 12 sy 12 si 2…");
    assert_eq!(rows[2], "PROCESS   PID  CPU% RATES");
    assert_eq!(rows[3], "rela…080 8080  50.0 8.08MB/s 10 conn/s …");
    assert!(rows[9].starts_with("q:quit"), "{rows:?}");
    for (width, height) in [(1, 1), (1, 2), (2, 1), (3, 5), (0, 0), (0, 5), (5, 0), (300, 3)] {
        let lines = drawn(&mut app, width, height);
        assert!(width == 0 || height == 0 || lines[0].starts_with(['c', '…']), "{lines:?}");
        for keys in ["?", " ", "/x"] {
            press_all(&mut app, keys);
            drawn(&mut app, width, height);
            press(&mut app, KeyCode::Esc);
        }
        press(&mut app, KeyCode::Enter);
        drawn(&mut app, width, height);
        press(&mut app, KeyCode::Esc);
    }
}

#[test]
fn nothing_that_runs_is_said() {
    assert!(drawn(&mut app([]), 80, 24).concat().contains("looking for processes"));
    let mut empty = app([sample(0, vec![])]);
    let first = &drawn(&mut empty, 80, 24)[0];
    assert!(first.contains("0 processes 0.0% of a CPU"), "{first}");
    assert!(drawn(&mut empty, 80, 24).concat().contains("no cachelane process runs"));
    let mut app = relays([8080]);
    press_all(&mut app, "/zzz");
    press(&mut app, KeyCode::Enter);
    assert!(drawn(&mut app, 80, 24).concat().contains("no process has this in its name"));
}

#[test]
fn the_selected_row_stays_on_the_screen_among_a_thousand() {
    let mut app = relays(10_000..11_000);
    assert_eq!(names(&mut app, 24).first().unwrap(), "10000");
    press(&mut app, KeyCode::End);
    assert_eq!(names(&mut app, 24).last().unwrap(), "10999");
    press(&mut app, KeyCode::PageUp);
    press(&mut app, KeyCode::Up);
    let shown = names(&mut app, 24);
    assert_eq!(shown.len(), 18);
    assert_eq!(shown.first().unwrap(), "10980");
    press(&mut app, KeyCode::Home);
    assert_eq!(names(&mut app, 24).first().unwrap(), "10000");
    press_all(&mut app, "jjk");
    assert_eq!(app.selected(), 1);
}

#[test]
fn the_selection_stays_with_its_process_and_then_with_its_place() {
    let mut app = relays([100, 200, 300]);
    press(&mut app, KeyCode::Down);
    app.take(sample(3000, [50, 100, 200, 300].map(|pid| relay(pid, 3000, 5)).into()));
    assert_eq!(app.selected(), 1, "relay :200 is behind relay :100, and before relay :50");
    app.take(sample(4000, vec![relay(100, 4000, 5)]));
    assert_eq!(app.selected(), 0);
    app.take(sample(5000, vec![]));
    assert_eq!(app.selected(), 0);
    assert_eq!(press(&mut app, KeyCode::Enter), Action::None);
}

#[test]
fn rows_are_sorted_reversed_and_filtered() {
    let mut app = relays([100, 300, 200]);
    assert_eq!(names(&mut app, 24), ["100", "200", "300"]);
    press_all(&mut app, "ss");
    assert_eq!(names(&mut app, 24), ["300", "200", "100"], "by rate");
    press_all(&mut app, "r");
    assert_eq!(names(&mut app, 24), ["100", "200", "300"]);
    press_all(&mut app, "rs/:2Q");
    assert!(drawn(&mut app, 80, 24)[23].starts_with("name contains: :2Q_"));
    press(&mut app, KeyCode::Backspace);
    press(&mut app, KeyCode::Enter);
    assert_eq!(names(&mut app, 24), ["200"]);
    assert_eq!(press(&mut app, KeyCode::Esc), Action::None);
    assert_eq!(names(&mut app, 24).len(), 3);
}

#[test]
fn a_frozen_view_says_so_and_stays() {
    let mut app = relays([100]);
    press_all(&mut app, " ");
    app.take(sample(9000, vec![]));
    let lines = drawn(&mut app, 100, 24);
    assert!(lines[0].contains("23:00:02Z") && lines[0].contains("FROZEN"), "{}", lines[0]);
    assert_eq!(app.model.tracks.len(), 1);
    press_all(&mut app, "p");
    app.take(sample(10_000, vec![]));
    assert!(!drawn(&mut app, 100, 24)[0].contains("FROZEN"));
    assert!(app.model.tracks.is_empty());
}

#[test]
fn a_silent_process_is_shown_with_what_it_did_before() {
    let mut app = relays([100]);
    let mut quiet = relay(100, 14_000, 5);
    let why = "stopped; kill -CONT 100 lets it go on".into();
    quiet.answer = Answer::Silent { why, since: Duration::from_secs(2) };
    app.take(sample(14_000, vec![quiet]));
    let lines = drawn(&mut app, 160, 24);
    let expected =
        "silent since 12s, was 100kB/s 10 conn/s 3 open (stopped; kill -CONT 100 lets it go on)";
    assert!(lines[5].contains(expected), "{}", lines[5]);
    press(&mut app, KeyCode::Enter);
    let lines = drawn(&mut app, 160, 24);
    assert!(lines[5].starts_with("silent since 12s: stopped; "), "{}", lines[5]);
}

#[test]
fn the_detail_has_counters_knobs_and_a_relays_ends() {
    let at = |ms: u64| {
        let mut process = relay(100, ms, 5);
        let Answer::Said(said) = &mut process.answer else { panic!("{process:?}") };
        let end = End {
            addr: "10.0.0.1:80".into(),
            is_backend: true,
            bytes_up: ms * 9,
            ..End::default()
        };
        said.relays = vec![Relay { prefix: "relay".into(), ends: vec![end] }];
        sample(ms, vec![process])
    };
    let mut app = app([0, 1000, 2000].map(at));
    let Action::Closely(Closely::One(key)) = press(&mut app, KeyCode::Enter) else { panic!() };
    assert_eq!(key.socket, "relay-100.sock");
    let lines = drawn(&mut app, 120, 40);
    let all = lines.join("\n");
    for words in [
        "relay :100 (relay, pid 100, uid 0): 50.0% of a CPU, 12M resident, 5 threads",
        "  10.0.0.1:80     DOWN       0       0       0       0  9.00kB/s      0B/s",
        "relay.engine auto     held by trial, pid 7; copy or auto",
        "COUNTER (by rate)          VALUE      RATE         HISTORY IS",
        "relay.bytes                10000   5.00k/s             ▁██ What relay.bytes counts. (things)",
        "relay.connections              3 ",
    ] {
        assert!(all.contains(words), "{words:?} is not in\n{all}");
    }
    let place = |words: &str| all.find(words).unwrap();
    assert!(place("relay.bytes ") < place("relay.accepted "), "the fastest first");
    press_all(&mut app, "s");
    let all = drawn(&mut app, 120, 40).join("\n");
    assert!(all.find("relay.bytes ") > all.find("relay.accepted "), "by name");
    // It scrolls to the end and no further.
    drawn(&mut app, 120, 12);
    press(&mut app, KeyCode::End);
    let lines = drawn(&mut app, 120, 12);
    assert!(lines[10].starts_with("relay.connections"), "{lines:?}");
    app.take(sample(3000, vec![]));
    assert!(drawn(&mut app, 120, 12).concat().contains("this process has ended"));
    assert_eq!(press(&mut app, KeyCode::Esc), Action::Closely(Closely::None));
    assert_eq!(press(&mut app, KeyCode::Esc), Action::Quit);
}

#[test]
fn a_bridge_shows_the_kernel_path_by_reason() {
    let at = |ms: u64| {
        let answer = Answer::Said(said(
            ms,
            &[
                ("bridge.straight", true, ms * 3),
                ("bridge.redirected", true, 0),
                ("bridge.kernel.vlan", true, ms),
                ("bridge.kernel.off", true, 0),
            ],
        ));
        sample(ms, vec![process("bridge br0", 7, ms, answer)])
    };
    let mut app = app([0, 1000].map(at));
    press(&mut app, KeyCode::Enter);
    let all = drawn(&mut app, 120, 40).join("\n");
    assert!(
        all.contains("fast path 3.00k packets/s, kernel path 1.00k/s: 75.0% fast path"),
        "{all}"
    );
    assert!(all.contains("KERNEL PATH, BY REASON"), "{all}");
    assert!(
        all.contains("vlan                           1000    1.00k/s What bridge.kernel.vlan"),
        "{all}"
    );
    assert!(!all.contains("\noff "), "a reason that there was not is left out: {all}");
}

#[test]
fn names_do_nothing_to_the_terminal_and_wide_ones_take_their_columns() {
    let mut wide = relay(1, 0, 5);
    wide.name = "日本語日本語日本語日本語日本語".into();
    let mut bad = relay(2, 0, 5);
    bad.name = "a\u{1b}[2J\u{202e}b".into();
    let mut app = app([sample(0, vec![wide, bad])]);
    let lines = drawn(&mut app, 80, 24);
    let all = lines.concat();
    assert!(all.contains("a?[2J?b"), "{all}");
    assert!(!all.contains(['\u{1b}', '\u{202e}']), "{all}");
    assert!(all.contains('日'), "{all}");
}

#[test]
fn a_replay_says_where_it_is_and_takes_steps() {
    let mut app = relays([100]);
    app.replay = Some(Replay { at: 1, of: 3, is_playing: false, speed: 1.0 });
    let lines = drawn(&mut app, 120, 24);
    assert!(lines[0].contains("REPLAY, PAUSED 2 of 3, x1"), "{}", lines[0]);
    assert!(lines[23].contains("left/right:step"), "{}", lines[23]);
    assert_eq!(press(&mut app, KeyCode::Left), Action::Step(-1));
    assert_eq!(press(&mut app, KeyCode::Char(' ')), Action::PlayOrPause);
    assert_eq!(press(&mut app, KeyCode::Char('+')), Action::Speed(2.0));
    assert!(!app.is_frozen);
}

#[test]
fn plus_and_minus_go_through_the_intervals() {
    let mut app = relays([100]);
    let ms = |ms| Action::Interval(Duration::from_millis(ms));
    assert_eq!(press(&mut app, KeyCode::Char('+')), ms(500));
    assert_eq!(press(&mut app, KeyCode::Char('-')), ms(1000));
    app.interval = Duration::from_millis(100);
    assert_eq!(press(&mut app, KeyCode::Char('+')), Action::None);
    app.interval = Duration::from_secs(3600);
    assert_eq!(press(&mut app, KeyCode::Char('-')), Action::None);
    let control = |key| KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL);
    assert_eq!(app.press(control('c')), Action::Quit);
    assert_eq!(app.press(control('z')), Action::Suspend);
}

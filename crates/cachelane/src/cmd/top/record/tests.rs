use std::fs;

use tempfile::TempDir;

use super::*;
use crate::cmd::top::testing::{relay, sample};

fn facts() -> Facts {
    Facts { host: "host".into(), lanes: vec![vec![0], vec![1]] }
}

fn samples() -> Vec<Sample> {
    [0, 1000, 2000].map(|ms| sample(ms, vec![relay(1, ms, 5), relay(2, ms, 7)])).into()
}

/// A recording of three samples, and where it is.
fn recorded() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("file");
    let mut recorder = Recorder::create(&path, &facts(), Duration::from_secs(1)).unwrap();
    samples().iter().for_each(|sample| recorder.write(sample).unwrap());
    (dir, path)
}

fn refused(path: &Path) -> String {
    format!("{:#}", Recording::open(path).unwrap_err())
}

#[test]
fn a_recording_is_read_as_it_was_written() {
    let (_dir, path) = recorded();
    let mut recording = Recording::open(&path).unwrap();
    assert_eq!((recording.header.interval_ms, recording.is_cut), (1000, false));
    assert_eq!(recording.header.facts, facts());
    let read: Vec<_> = (0..recording.len()).map(|place| recording.sample(place).unwrap()).collect();
    assert_eq!(read, samples());
    let lists = fs::read_to_string(&path).unwrap().matches(r#"{"meters":["#).count();
    assert_eq!(lists, 1, "names of counters are written once");
}

#[test]
fn lists_of_counters_keep_their_numbers() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("file");
    let mut recorder = Recorder::create(&path, &facts(), Duration::from_secs(1)).unwrap();
    let mut sample = samples().remove(0);
    for (process, id) in sample.processes.iter_mut().zip([3, 1]) {
        let Answer::Said(said) = &mut process.answer else { panic!("{process:?}") };
        said.meters_id = id;
    }
    recorder.write(&sample).unwrap();
    assert_eq!(Recording::open(&path).unwrap().sample(0).unwrap(), sample);
}

#[test]
fn a_last_line_that_is_cut_off_is_left_out() {
    let (_dir, path) = recorded();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 7]).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!((recording.len(), recording.is_cut), (2, true));
    // Only its end is missing.
    fs::write(&path, text.trim_end()).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert_eq!((recording.len(), recording.is_cut), (3, false));
}

#[test]
fn what_is_wrong_is_said_with_the_line() {
    let (_dir, path) = recorded();
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let with = |place: usize, line: &str| {
        let mut lines = lines.clone();
        lines[place] = line;
        lines.join("\n") + "\n"
    };
    let no_header = lines[0].replace("cachelane_top", "other");
    let later = lines[0].replace(r#""schema":1"#, r#""schema":7"#);
    let unknown = lines[3].replace(r#""meters":0"#, r#""meters":5"#);
    let short = lines[3].replace(r#""values":["#, r#""values":[1,"#);
    for (text, words) in [
        (String::new(), "file:1: not a recording"),
        ("hello\n".into(), "file:1: not a recording"),
        ("{}\n".into(), "file:1: not a recording"),
        (with(0, &no_header), "file:1: not a recording"),
        (with(0, &later), "file:1: schema 7 is not read here (expected 1)"),
        (with(3, "{"), "file:4: EOF"),
        (with(3, r#"{"sample":{}}"#), "file:4: missing field `unix_ms`"),
        (with(3, &unknown), "file:4: list 5 of counters has not come before"),
        (with(3, &short), "file:4: relay :1 has 4 values (expected 3)"),
        (format!("{}\n", lines[0]), "file: there is no whole sample in it"),
    ] {
        fs::write(&path, &text).unwrap();
        let said = refused(&path);
        assert!(said.contains(words), "{words:?} is not in {said:?}");
    }
    let folder = refused(path.parent().unwrap());
    assert!(folder.contains("expected a file that cachelane top --record wrote"), "{folder}");
    let missing = refused(Path::new("/no/such/file"));
    assert!(missing.starts_with("cannot read /no/such/file: "), "{missing}");
}

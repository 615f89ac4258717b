//! Recordings: JSON lines. The first says what it is; then come lists of counters, each once before it
//! is needed, and samples.

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use super::sample::{Answer, Meter, Sample};
use super::table::Facts;

const SCHEMA: u64 = 1;

/// What a line is, at most: thousands of processes.
const LONGEST: u64 = 64 << 20;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    schema: u64,
    /// The version of the command that wrote it. Its name tells a recording from other files.
    cachelane_top: String,
    pub(super) interval_ms: u64,
    #[serde(flatten)]
    pub(super) facts: Facts,
}

/// Any other line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// Numbered from 0 on.
    Meters(Vec<Meter>),
    Sample(Sample),
}

/// A recording that is being written.
#[derive(Debug)]
pub(super) struct Recorder {
    path: PathBuf,
    file: BufWriter<File>,
    lists: usize,
    written: usize,
}

impl Recorder {
    /// Begins one, in place of what is there.
    pub(super) fn create(
        path: &Path,
        facts: &Facts,
        interval: Duration,
    ) -> anyhow::Result<Recorder> {
        let file = File::create(path).with_context(|| cannot_write(path))?;
        let file = BufWriter::new(file);
        let mut recorder = Recorder { path: path.to_owned(), file, lists: 0, written: 0 };
        recorder.line(&Header {
            schema: SCHEMA,
            cachelane_top: env!("CARGO_PKG_VERSION").into(),
            interval_ms: u64::try_from(interval.as_millis()).unwrap_or(u64::MAX),
            facts: facts.clone(),
        })?;
        recorder.flush()?;
        Ok(recorder)
    }

    /// Writes a sample, all of it: whoever is killed has lost no earlier one.
    pub(super) fn write(&mut self, sample: &Sample) -> anyhow::Result<()> {
        // Lists are numbered in the order in which they were first seen.
        let mut new: Vec<(usize, &Arc<Vec<Meter>>)> = Vec::new();
        for process in &sample.processes {
            let Answer::Said(said) = &process.answer else { continue };
            if said.meters_id >= self.lists && !new.iter().any(|(id, _)| *id == said.meters_id) {
                new.push((said.meters_id, &said.meters));
            }
        }
        new.sort_by_key(|(id, _)| *id);
        for (id, list) in new {
            // One whose only process is not shown leaves a gap.
            while self.lists < id {
                self.line(&Entry::Meters(Vec::new()))?;
                self.lists += 1;
            }
            self.line(&Entry::Meters(list.to_vec()))?;
            self.lists += 1;
        }
        self.line(&serde_json::json!({"sample": sample}))?;
        self.written += 1;
        self.flush()
    }

    fn line(&mut self, line: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec(line).context("cannot make JSON of a sample")?;
        text.push(b'\n');
        self.file.write_all(&text).with_context(|| cannot_write(&self.path))
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.file.flush().with_context(|| cannot_write(&self.path))
    }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write the recording {} (choose another file with --record)", path.display())
}

/// A recording that is read. Its samples stay in the file until they are asked for.
#[derive(Debug)]
pub(super) struct Recording {
    path: PathBuf,
    file: File,
    pub(super) header: Header,
    lists: Vec<Arc<Vec<Meter>>>,
    /// Where each sample's line begins, how long it is, and its number from 1.
    samples: Vec<(u64, usize, usize)>,
    /// The last line was cut off.
    pub(super) is_cut: bool,
}

impl Recording {
    /// Reads all of it once, so that what is wrong is found before anything is shown.
    pub(super) fn open(path: &Path) -> anyhow::Result<Recording> {
        let shown = path.display();
        let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
        let is_file = file.metadata().with_context(|| format!("cannot read {shown}"))?.is_file();
        if !is_file {
            bail!(
                "{shown}: expected a file that cachelane top --record wrote, not a pipe or folder"
            );
        }
        let mut reader = BufReader::new(file.try_clone()?);
        let mut line = Vec::new();
        next_line(&mut reader, &mut line).with_context(|| format!("cannot read {shown}"))?;
        let header = header(&line).with_context(|| format!("{shown}:1"))?;
        let mut offset = line.len() as u64;
        let (lists, samples) = (Vec::new(), Vec::new());
        let mut recording =
            Recording { path: path.to_owned(), file, header, lists, samples, is_cut: false };
        for number in 2.. {
            next_line(&mut reader, &mut line).with_context(|| format!("cannot read {shown}"))?;
            if line.is_empty() {
                break;
            }
            let is_whole = line.ends_with(b"\n");
            match recording.parse(&line) {
                Ok(Some(_)) => recording.samples.push((offset, line.len(), number)),
                Ok(None) => {}
                Err(_) if !is_whole => {
                    recording.is_cut = true;
                    break;
                }
                Err(error) => return Err(error.context(format!("{shown}:{number}"))),
            }
            offset += line.len() as u64;
        }
        if recording.samples.is_empty() {
            bail!("{shown}: there is no whole sample in it");
        }
        Ok(recording)
    }

    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    /// A sample by its place.
    pub(super) fn sample(&mut self, place: usize) -> anyhow::Result<Sample> {
        let (offset, length, number) = self.samples[place];
        let mut line = vec![0; length];
        let shown = format!("{}:{number}", self.path.display());
        self.file.read_exact_at(&mut line, offset).with_context(|| shown.clone())?;
        let sample = self.parse(&line).with_context(|| shown.clone())?;
        sample.with_context(|| format!("{shown}: no sample any more"))
    }

    /// Reads a line: a sample, or a list that is kept.
    fn parse(&mut self, line: &[u8]) -> anyhow::Result<Option<Sample>> {
        let mut sample = match serde_json::from_slice(line)? {
            Entry::Sample(sample) => sample,
            Entry::Meters(list) => {
                self.lists.push(Arc::new(list));
                return Ok(None);
            }
        };
        for process in &mut sample.processes {
            let Answer::Said(said) = &mut process.answer else { continue };
            let Some(list) = self.lists.get(said.meters_id) else {
                bail!("list {} of counters has not come before", said.meters_id);
            };
            if list.len() != said.values.len() {
                let (has, expected) = (said.values.len(), list.len());
                bail!("{} has {has} values (expected {expected})", process.name);
            }
            said.meters = Arc::clone(list);
        }
        Ok(Some(sample))
    }
}

/// Reads a line with its end; nothing at the end of the file.
fn next_line(reader: &mut BufReader<File>, line: &mut Vec<u8>) -> std::io::Result<()> {
    line.clear();
    reader.by_ref().take(LONGEST).read_until(b'\n', line).map(drop)
}

fn header(line: &[u8]) -> anyhow::Result<Header> {
    const WHAT: &str = "not a recording (expected a file that cachelane top --record wrote)";
    let said: serde_json::Value = serde_json::from_slice(line).context(WHAT)?;
    if said["cachelane_top"].is_null() {
        bail!(WHAT);
    }
    if said["schema"] != SCHEMA {
        let (schema, version) = (&said["schema"], &said["cachelane_top"]);
        bail!("schema {schema} is not read here (expected {SCHEMA}); cachelane {version} wrote it");
    }
    serde_json::from_value(said).context(WHAT)
}

#[cfg(test)]
mod tests;

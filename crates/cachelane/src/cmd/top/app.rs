//! What is shown at this moment, and what keys do to it. Nothing here reads or draws.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::collect::Closely;
use super::marks::Marks;
use super::model::Model;
use super::sample::{Key, Sample};
use super::table::{Facts, Sort, ordered};

/// What a key asks for, beside another view.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    None,
    Quit,
    /// To be stopped, as by a shell's job control.
    Suspend,
    Interval(Duration),
    Closely(Closely),
    /// Of a recording: so many samples on.
    Step(isize),
    /// To the first sample or the last.
    Begin,
    End,
    PlayOrPause,
    Speed(f64),
}

/// Where a replay is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Replay {
    pub(super) at: usize,
    pub(super) of: usize,
    pub(super) is_playing: bool,
    pub(super) speed: f64,
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct App {
    pub(super) facts: Facts,
    pub(super) marks: Marks,
    pub(super) model: Model,
    pub(super) sort: Sort,
    pub(super) reverse: bool,
    pub(super) filter: String,
    /// The filter is being written.
    pub(super) is_typing: bool,
    pub(super) help: bool,
    /// The process that is shown in full.
    pub(super) detail: Option<Key>,
    pub(super) by_rate: bool,
    /// The first line of the detail that is seen.
    pub(super) scroll: usize,
    /// The last that it can be, and how many are seen: as it was drawn.
    pub(super) scroll_most: usize,
    pub(super) page: usize,
    selected: Option<Key>,
    /// Where the selected row was, should its process end.
    place: usize,
    /// The first row that is seen.
    pub(super) offset: usize,
    pub(super) is_frozen: bool,
    pub(super) interval: Duration,
    pub(super) replay: Option<Replay>,
    /// What went wrong with the last sample.
    pub(super) trouble: Option<String>,
}

/// The intervals that + and - go through.
const INTERVALS: [u64; 10] = [100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000];

const SPEEDS: [f64; 9] = [0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];

impl App {
    pub(super) fn new(facts: Facts, marks: Marks, interval: Duration) -> App {
        App {
            facts,
            marks,
            model: Model::default(),
            sort: Sort::default(),
            reverse: false,
            filter: String::new(),
            is_typing: false,
            help: false,
            detail: None,
            by_rate: true,
            scroll: 0,
            scroll_most: 0,
            page: 1,
            selected: None,
            place: 0,
            offset: 0,
            is_frozen: false,
            interval,
            replay: None,
            trouble: None,
        }
    }

    /// Takes the next sample, unless what is shown is to stay.
    pub(super) fn take(&mut self, sample: Sample) {
        if !self.is_frozen {
            self.trouble = None;
            self.model.take(sample);
        }
    }

    /// The row that is selected, by its place among all rows.
    pub(super) fn selected(&mut self) -> usize {
        let rows = ordered(&self.model, self.sort, self.reverse, &self.filter);
        let selected = self.selected.as_ref();
        let found = rows.iter().position(|track| Some(&track.process.key) == selected);
        let place = found.unwrap_or(self.place).min(rows.len().saturating_sub(1));
        let key = rows.get(place).map(|track| track.process.key.clone());
        (self.place, self.selected) = (place, key);
        place
    }

    fn select(&mut self, place: usize) {
        let rows = ordered(&self.model, self.sort, self.reverse, &self.filter);
        let place = place.min(rows.len().saturating_sub(1));
        let key = rows.get(place).map(|track| track.process.key.clone());
        (self.place, self.selected) = (place, key);
    }

    /// Does what a key asks for, and says what is left to do.
    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                _ => Action::None,
            };
        }
        // No key of ours; a terminal says so, too, of a key that comes at once behind Esc.
        if key.modifiers.contains(KeyModifiers::ALT) {
            return Action::None;
        }
        if self.is_typing {
            self.write_filter(key.code);
            return Action::None;
        }
        if self.help {
            // Any key.
            self.help = false;
            return Action::None;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return self.back(),
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('s') if self.detail.is_some() => self.by_rate = !self.by_rate,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('/') if self.detail.is_none() => self.is_typing = true,
            KeyCode::Char(' ' | 'p') if self.replay.is_some() => return Action::PlayOrPause,
            KeyCode::Char(' ' | 'p') => self.is_frozen = !self.is_frozen,
            KeyCode::Char('+' | '=') => return self.faster(true),
            KeyCode::Char('-') => return self.faster(false),
            KeyCode::Enter if self.detail.is_none() => return self.open(),
            KeyCode::Left if self.replay.is_some() => return Action::Step(-1),
            KeyCode::Right if self.replay.is_some() => return Action::Step(1),
            KeyCode::Char('<') if self.replay.is_some() => return Action::Begin,
            KeyCode::Char('>') if self.replay.is_some() => return Action::End,
            code => self.go(code),
        }
        Action::None
    }

    fn write_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(character) => self.filter.push(character),
            _ => {}
        }
    }

    /// One step back, and from the first view out.
    fn back(&mut self) -> Action {
        if self.detail.take().is_some() {
            return Action::Closely(Closely::None);
        }
        if !self.filter.is_empty() {
            self.filter.clear();
            return Action::None;
        }
        Action::Quit
    }

    fn open(&mut self) -> Action {
        self.selected();
        self.scroll = 0;
        self.detail.clone_from(&self.selected);
        match &self.detail {
            Some(key) => Action::Closely(Closely::One(key.clone())),
            None => Action::None,
        }
    }

    /// A shorter interval or, of a replay, a higher speed; or the opposite.
    fn faster(&mut self, is_faster: bool) -> Action {
        if let Some(replay) = &self.replay {
            let speeds = SPEEDS.iter().copied();
            let next = match is_faster {
                true => speeds.filter(|speed| *speed > replay.speed).reduce(f64::min),
                false => speeds.filter(|speed| *speed < replay.speed).reduce(f64::max),
            };
            return next.map_or(Action::None, Action::Speed);
        }
        let now = self.interval;
        let intervals = INTERVALS.into_iter().map(Duration::from_millis);
        let next = match is_faster {
            true => intervals.filter(|interval| *interval < now).max(),
            false => intervals.filter(|interval| *interval > now).min(),
        };
        let Some(next) = next else { return Action::None };
        self.interval = next;
        Action::Interval(next)
    }

    /// Goes to another row, or line.
    fn go(&mut self, code: KeyCode) {
        let by = match code {
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::PageUp => -(self.page as isize),
            KeyCode::PageDown => self.page as isize,
            KeyCode::Home | KeyCode::Char('g') => isize::MIN / 2,
            KeyCode::End | KeyCode::Char('G') => isize::MAX / 2,
            _ => return,
        };
        if self.detail.is_some() {
            self.scroll = self.scroll.min(self.scroll_most).saturating_add_signed(by);
            self.scroll = self.scroll.min(self.scroll_most);
        } else {
            let place = self.selected().saturating_add_signed(by);
            self.select(place);
        }
    }
}

//! The live view, and the replay: what comes from the terminal, the processes and signals is taken in
//! turn by one thread, which alone draws.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use crossterm::event::{Event, KeyEventKind};
use rustix::process::{Signal, getppid, getsid, kill_process};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGQUIT, SIGTSTP};

use super::app::{Action, App, Replay};
use super::collect::{Closely, Collector};
use super::draw::draw;
use super::model::{HISTORY, Model};
use super::record::{Recorder, Recording};
use super::sample::Sample;
use super::screen::{self, Screen};
use crate::run::{self, Ended, Followed, Foreground};
use crate::terminal::colour;

/// What comes to the thread that draws.
enum Message {
    Input(std::io::Result<Event>),
    Sample(anyhow::Result<Sample>),
    /// The recording cannot go on.
    Failed(anyhow::Error),
    Signal(i32),
}

/// What the collector's thread is told.
enum Order {
    Interval(Duration),
    Closely(Closely),
}

/// Where samples are from.
pub(super) enum From {
    Processes { collector: Collector, recorder: Option<Recorder> },
    Recording(Recording),
}

/// Shows it until it is ended.
pub(super) fn show(app: App, from: From, time: Option<Duration>) -> anyhow::Result<()> {
    let mut foreground = Foreground::new()?;
    run::end_on_hangup()?;
    let (tell, inbox) = channel();
    let post = Post { tell, wake: std::sync::Arc::new(foreground.waker()?) };
    catch_signals(&post)?;
    let screen = Screen::take()?;
    let typed = post.clone();
    spawn("keys", move || screen::read(|event| typed.send(Message::Input(event))))?;
    let mut app = app;
    let source = match from {
        From::Processes { collector, recorder } => {
            let (orders, ordered) = channel();
            let interval = app.interval;
            spawn("collector", move || collect(collector, recorder, interval, &ordered, &post))?;
            Source::Collector(orders)
        }
        From::Recording(recording) => Source::Player(Player::begin(recording, &mut app)?),
    };
    let mut live = Live { app, screen, source, inbox, ended: None, colour: colour() };
    live.draw()?;
    foreground.follow(time, &mut live)?;
    Ok(())
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.map(drop).context("cannot start a thread")
}

/// Sends messages and wakes who reads them; also when it goes, whatever the reason.
#[derive(Clone)]
struct Post {
    tell: Sender<Message>,
    wake: std::sync::Arc<dyn Fn() + Send + Sync>,
}

impl Post {
    /// Whether somebody still reads.
    fn send(&self, message: Message) -> bool {
        let sent = self.tell.send(message).is_ok();
        (self.wake)();
        sent
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        (self.wake)();
    }
}

fn catch_signals(post: &Post) -> anyhow::Result<()> {
    let signals = signal_hook::iterator::Signals::new([SIGTSTP, SIGCONT, SIGHUP, SIGQUIT]);
    let mut signals = signals.context("cannot catch signals")?;
    let post = post.clone();
    spawn("signals", move || {
        for signal in signals.forever() {
            if !post.send(Message::Signal(signal)) {
                return;
            }
        }
    })
}

/// The collector's thread: a sample each interval, and one at once when more is asked for.
fn collect(
    mut collector: Collector,
    mut recorder: Option<Recorder>,
    mut interval: Duration,
    orders: &Receiver<Order>,
    post: &Post,
) {
    let mut closely = Closely::None;
    let mut next = Instant::now();
    loop {
        let what = if recorder.is_some() { &Closely::All } else { &closely };
        let sample = collector.sample(what);
        if let (Ok(sample), Some(recorder)) = (&sample, &mut recorder)
            && let Err(error) = recorder.write(sample)
        {
            post.send(Message::Failed(error));
            return;
        }
        if !post.send(Message::Sample(sample)) {
            return;
        }
        // In step, unless it came too late.
        let now = Instant::now();
        next = if next + interval > now { next + interval } else { now + interval };
        match orders.recv_timeout(next.saturating_duration_since(now)) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(Order::Interval(new)) => interval = new,
            Ok(Order::Closely(new)) => closely = new,
        }
    }
}

enum Source {
    Collector(Sender<Order>),
    Player(Player),
}

struct Live {
    app: App,
    screen: Screen,
    source: Source,
    inbox: Receiver<Message>,
    ended: Option<Ended>,
    colour: bool,
}

impl Followed for Live {
    fn ended(&mut self) -> Option<Ended> {
        // A signal that was caught with others.
        self.ended.or_else(|| run::is_asked_to_end().then_some(Ended::Signal(SIGHUP)))
    }

    fn turn(&mut self) -> anyhow::Result<Option<Duration>> {
        let mut is_new = false;
        self.screen.check()?;
        while let Ok(message) = self.inbox.try_recv() {
            is_new |= self.heed(message)?;
            if self.ended.is_some() {
                return Ok(Some(Duration::ZERO));
            }
        }
        let mut pause = None;
        if let Source::Player(player) = &mut self.source {
            let (has_played, next) = player.play(&mut self.app)?;
            (is_new, pause) = (is_new | has_played, next);
        }
        if is_new {
            self.draw()?;
        }
        Ok(pause)
    }

    fn log(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

impl Live {
    fn draw(&mut self) -> anyhow::Result<()> {
        let (app, colour) = (&mut self.app, self.colour);
        match self.screen.draw(|frame| draw(frame, app, colour)) {
            // A terminal that takes nothing, or is lost, is no error to whoever ends this.
            Err(_) if run::is_asked_to_end() => Ok(()),
            drawn => drawn,
        }
    }

    /// Does what a message asks for; whether there is something new to draw.
    fn heed(&mut self, message: Message) -> anyhow::Result<bool> {
        match message {
            Message::Sample(Ok(sample)) => self.app.take(sample),
            Message::Sample(Err(error)) => self.app.trouble = Some(format!("{error:#}")),
            Message::Failed(error) => return Err(error),
            Message::Signal(SIGTSTP) => self.suspend()?,
            Message::Signal(SIGCONT) => self.screen.enter()?,
            Message::Signal(_) => {}
            Message::Input(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => {
                let action = self.app.press(key);
                self.act(action)?;
            }
            Message::Input(Ok(_)) => {}
            Message::Input(Err(error)) => return Err(error).context("cannot read the terminal"),
        }
        Ok(true)
    }

    fn act(&mut self, action: Action) -> anyhow::Result<()> {
        match (action, &mut self.source) {
            (Action::Quit, _) => self.ended = Some(Ended::Reader),
            (Action::Suspend, _) => self.suspend()?,
            // The thread has said why, if it has gone.
            (Action::Interval(new), Source::Collector(to)) => drop(to.send(Order::Interval(new))),
            (Action::Closely(new), Source::Collector(to)) => drop(to.send(Order::Closely(new))),
            (action, Source::Player(player)) => player.act(&action, &mut self.app)?,
            _ => {}
        }
        Ok(())
    }

    /// Stops this process, with the terminal as it was; a shell sets it going again. Where there is
    /// none, nobody would.
    fn suspend(&mut self) -> anyhow::Result<()> {
        let session = |pid| getsid(pid).ok();
        let is_ours = getppid().is_some_and(|shell| session(Some(shell)) == session(None));
        if !is_ours {
            return Ok(());
        }
        self.screen.leave();
        let own = rustix::process::getpid();
        kill_process(own, Signal::STOP).context("cannot stop this process")?;
        self.screen.enter()
    }
}

/// A recording that is shown.
struct Player {
    recording: Recording,
    at: usize,
    /// When the next sample is due, while it plays.
    due: Option<Instant>,
    speed: f64,
}

impl Player {
    fn begin(recording: Recording, app: &mut App) -> anyhow::Result<Player> {
        let mut player = Player { recording, at: 0, due: None, speed: 1.0 };
        if let Some(replay) = &app.replay {
            player.speed = replay.speed;
        }
        player.go(0, app)?;
        player.plan(true, app)?;
        Ok(player)
    }

    /// Shows the sample of this place.
    fn go(&mut self, place: usize, app: &mut App) -> anyhow::Result<()> {
        let place = place.min(self.recording.len() - 1);
        if place == self.at + 1 {
            app.model.take(self.recording.sample(place)?);
        } else {
            app.model = model_at(&mut self.recording, place)?;
        }
        self.at = place;
        self.tell(app);
        Ok(())
    }

    fn tell(&self, app: &mut App) {
        let (at, of, is_playing) = (self.at, self.recording.len(), self.due.is_some());
        app.replay = Some(Replay { at, of, is_playing, speed: self.speed });
    }

    /// Decides when the next sample is due, if there is one.
    fn plan(&mut self, is_playing: bool, app: &mut App) -> anyhow::Result<()> {
        let has_next = self.at + 1 < self.recording.len();
        self.due = None;
        if is_playing && has_next {
            let now = self.recording.sample(self.at)?.at;
            let span = self.recording.sample(self.at + 1)?.at.saturating_sub(now);
            self.due = Some(Instant::now() + span.div_f64(self.speed));
        }
        self.tell(app);
        Ok(())
    }

    /// Goes on if that is due; whether it did, and when it is due again.
    fn play(&mut self, app: &mut App) -> anyhow::Result<(bool, Option<Duration>)> {
        let is_due = self.due.is_some_and(|due| due <= Instant::now());
        if is_due {
            self.go(self.at + 1, app)?;
            self.plan(true, app)?;
        }
        Ok((is_due, self.due.map(|due| due.saturating_duration_since(Instant::now()))))
    }

    fn act(&mut self, action: &Action, app: &mut App) -> anyhow::Result<()> {
        let is_playing = self.due.is_some();
        match action {
            Action::Step(by) => {
                self.go(self.at.saturating_add_signed(*by), app)?;
                self.plan(false, app)
            }
            Action::Begin => self.go(0, app).and_then(|()| self.plan(false, app)),
            Action::End => self.go(usize::MAX, app).and_then(|()| self.plan(false, app)),
            Action::PlayOrPause => {
                // From the end it plays again.
                if !is_playing && self.at + 1 == self.recording.len() {
                    self.go(0, app)?;
                }
                self.plan(!is_playing, app)
            }
            Action::Speed(speed) => {
                self.speed = *speed;
                self.plan(is_playing, app)
            }
            _ => Ok(()),
        }
    }
}

/// What was known at a sample, with as much of the history before it as is shown.
pub(super) fn model_at(recording: &mut Recording, place: usize) -> anyhow::Result<Model> {
    let mut model = Model::default();
    for place in place.saturating_sub(HISTORY)..=place {
        model.take(recording.sample(place)?);
    }
    Ok(model)
}

/// Opens a recording, and says what of it is missing.
pub(super) fn open(path: &Path) -> anyhow::Result<Recording> {
    let recording = Recording::open(path)?;
    if recording.is_cut {
        tracing::info!("{}: the last line is cut off and left out", path.display());
    }
    Ok(recording)
}

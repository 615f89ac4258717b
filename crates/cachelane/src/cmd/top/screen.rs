//! The terminal while the view is on it: taken, given back on every way out, and what is typed on it.

use std::io::{self, Write};
use std::panic;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use anyhow::Context as _;
use crossterm::cursor::{Hide, Show};
use crossterm::event::Event;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};

use crate::out;
use crate::run::{HeldLog, hold_log};

/// Whether the terminal is ours now. A panic of any thread gives it back.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal, with the view on it. When this is dropped, the terminal is as it was before.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<WhileTaken>>,
    area: Rect,
    /// Logs come after the view.
    _log: HeldLog,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn take() -> anyhow::Result<Screen> {
        give_back_on_panic();
        let area = area();
        let terminal = terminal(area)?;
        let mut screen = Screen { terminal, area, _log: hold_log() };
        screen.enter()?;
        Ok(screen)
    }

    /// Takes the terminal again, whatever was on it meanwhile.
    pub(super) fn enter(&mut self) -> anyhow::Result<()> {
        // A shell may have changed its mode since.
        disable_raw_mode().and_then(|()| enable_raw_mode()).context(
            "cannot set the terminal to raw mode (--once prints one view without a terminal)",
        )?;
        IS_TAKEN.store(true, SeqCst);
        let mut to = out::Screen::default();
        crossterm::execute!(to, EnterAlternateScreen, Hide).context(CANNOT_PRINT)?;
        self.redraw_all()
    }

    /// Gives the terminal back.
    pub(super) fn leave(&mut self) {
        give_back();
    }

    /// Whether it is ours still: a thread that panics gives it back.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(IS_TAKEN.load(SeqCst), "a thread of this command has failed");
        Ok(())
    }

    /// Draws what has changed.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        let area = area();
        if area != self.area {
            self.area = area;
            self.redraw_all()?;
        }
        self.terminal.draw(draw).context(CANNOT_PRINT)?;
        Ok(())
    }

    /// Has the next drawing draw all of it. The terminal's own way to do so asks it where the cursor
    /// is, and the thread that reads the keys would get the answer.
    fn redraw_all(&mut self) -> anyhow::Result<()> {
        self.terminal = terminal(self.area)?;
        let mut to = out::Screen::default();
        crossterm::execute!(to, Clear(ClearType::All)).context(CANNOT_PRINT)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// The terminal while it is ours. Later it takes all and prints nothing: at its end ratatui shows the
/// cursor, which it has been already, and complains on stderr where that fails. A terminal that takes
/// nothing would hold that up for ever.
#[derive(Debug, Default)]
struct WhileTaken(out::Screen);

impl Write for WhileTaken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        if IS_TAKEN.load(SeqCst) { self.0.flush() } else { Ok(()) }
    }
}

const CANNOT_PRINT: &str = "cannot print to the terminal";

fn terminal(area: Rect) -> anyhow::Result<Terminal<CrosstermBackend<WhileTaken>>> {
    let options = TerminalOptions { viewport: Viewport::Fixed(area) };
    let backend = CrosstermBackend::new(WhileTaken::default());
    Terminal::with_options(backend, options).context("cannot use the terminal")
}

/// The whole terminal; as many do, one that does not know its size is taken to have 80x24.
fn area() -> Rect {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let size = size.map(|size| (size.ws_col, size.ws_row)).filter(|size| *size != (0, 0));
    let (columns, rows) = size.unwrap_or((80, 24));
    Rect::new(0, 0, columns, rows)
}

fn give_back() {
    if IS_TAKEN.swap(false, SeqCst) {
        // If the terminal is lost, there is nothing to give back.
        let mut to = out::Screen::default();
        let _ = crossterm::execute!(to, LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Has a panic's message come after the view.
fn give_back_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
    });
}

/// Reads what is typed, and that the size has changed, until the terminal is lost.
pub(super) fn read(mut tell: impl FnMut(io::Result<Event>) -> bool) {
    loop {
        let event = crossterm::event::read();
        let is_over = event.is_err();
        if !tell(event) || is_over {
            return;
        }
    }
}

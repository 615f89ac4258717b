//! Draws the view: the head, the processes or one of them, and the keys.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use super::app::App;
use super::detail::Detail;
use super::table::{Columns, cpus, first, ordered};

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App, colour: bool) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    if width == 0 || height == 0 {
        return;
    }
    let mut canvas = Canvas { frame, colour, line: 0 };
    let head = first(&app.facts, &app.model, &state(app), app.marks, width);
    canvas.put(&head, canvas.bold());
    let lines = match height {
        0..6 => 0,
        6..15 => 1,
        _ => height / 4,
    };
    for line in cpus(&app.facts, &app.model, app.marks, width, lines) {
        canvas.put(&line, Style::new());
    }
    if height >= 12 {
        canvas.line += 1;
    }
    let rows = height.saturating_sub(canvas.line + 1);
    if app.help {
        help(&mut canvas, app, width, rows);
    } else if app.detail.is_some() {
        detail(&mut canvas, app, width, rows);
    } else {
        list(&mut canvas, app, width, rows);
    }
    // The last line is the keys'; where there is but one, the head is.
    if height > 1 {
        canvas.line = height - 1;
        let keys = app.marks.at_most(&keys(app), width);
        canvas.put(&keys, Style::new().add_modifier(Modifier::DIM));
    }
}

/// Lines from the top.
struct Canvas<'a, 'b> {
    frame: &'a mut Frame<'b>,
    colour: bool,
    line: usize,
}

impl Canvas<'_, '_> {
    fn put(&mut self, text: &str, style: Style) {
        let area = self.frame.area();
        // Within the screen, so within 16 bits.
        if self.line < usize::from(area.height) {
            let line = Rect { y: area.y + self.line as u16, height: 1, ..area };
            self.frame.render_widget(Line::styled(text, style), line);
            self.frame.buffer_mut().set_style(line, style);
        }
        self.line += 1;
    }

    fn bold(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    fn title(&self) -> Style {
        let style = self.bold();
        if self.colour { style.fg(Color::Cyan) } else { style }
    }

    fn alert(&self) -> Style {
        let style = Style::new();
        if self.colour { style.fg(Color::Yellow) } else { style.add_modifier(Modifier::DIM) }
    }
}

/// What the first line says of the view itself.
fn state(app: &App) -> String {
    let mut words = Vec::new();
    match &app.replay {
        Some(replay) => {
            let is = if replay.is_playing { "REPLAY" } else { "REPLAY, PAUSED" };
            words.push(format!("{is} {} of {}, x{}", replay.at + 1, replay.of, replay.speed));
        }
        None => words.push(format!("every {}", humantime::format_duration(app.interval))),
    }
    if app.is_frozen {
        words.push("FROZEN".into());
    }
    words.join("  ")
}

fn list(canvas: &mut Canvas<'_, '_>, app: &mut App, width: usize, rows: usize) {
    let columns = Columns::new(app.marks, width, &app.model);
    canvas.put(&columns.title(), canvas.title());
    let rows = rows.saturating_sub(1);
    let selected = app.selected();
    app.page = rows.max(1);
    // The selected row is seen.
    app.offset = app.offset.clamp((selected + 1).saturating_sub(app.page), selected);
    let shown = ordered(&app.model, app.sort, app.reverse, &app.filter);
    if shown.is_empty() {
        let why = match app.filter.is_empty() {
            true if app.model.unix_ms == 0 => "looking for processes",
            true => "no cachelane process runs",
            false => "no process has this in its name",
        };
        canvas.put(&app.marks.at_most(why, width), Style::new());
    }
    for (place, track) in shown.iter().enumerate().skip(app.offset).take(rows) {
        let row = columns.row(track, app.model.at);
        let style = match track.silent() {
            Some(_) => canvas.alert(),
            None => Style::new(),
        };
        let is_selected = place == selected;
        canvas.put(&row, if is_selected { style.add_modifier(Modifier::REVERSED) } else { style });
    }
}

fn detail(canvas: &mut Canvas<'_, '_>, app: &mut App, width: usize, rows: usize) {
    let track = app.detail.as_ref().and_then(|key| app.model.tracks.get(key));
    let Some(track) = track else {
        canvas.put(&app.marks.at_most("this process has ended", width), canvas.alert());
        return;
    };
    let detail = Detail { marks: app.marks, width, by_rate: app.by_rate, reverse: app.reverse };
    let lines = detail.lines(track, app.model.at);
    let is_silent = track.silent().is_some();
    app.page = rows.max(1);
    app.scroll_most = lines.len().saturating_sub(rows);
    app.scroll = app.scroll.min(app.scroll_most);
    for (place, line) in lines.iter().enumerate().skip(app.scroll).take(rows) {
        let style = match (line.is_head, is_silent && place == 1) {
            (true, _) => canvas.title(),
            (_, true) => canvas.alert(),
            _ if place == 0 => canvas.bold(),
            _ => Style::new(),
        };
        canvas.put(&line.text, style);
    }
}

const HELP: &str = "\
up, down, j, k         select a process, or scroll
PageUp, PageDown, Home, End
Enter                  all that is known of the process
s                      sort by name, CPU or rate; in the detail, by rate or name
r                      the other way round
/                      only processes with these words in their names
space, p               freeze the view; a replay: pause
+, -                   a shorter or longer interval; a replay: faster or slower
left, right, <, >      a replay: a sample back or on, to the first, to the last
Ctrl-Z                 back to the shell; fg returns
q, Esc, Ctrl-C         back, or the end; Ctrl-C is always the end

RATES are by second, over the time between two answers of the process.
A process that does not answer is silent; what it shows is old.";

fn help(canvas: &mut Canvas<'_, '_>, app: &App, width: usize, rows: usize) {
    for line in HELP.lines().take(rows) {
        canvas.put(&app.marks.at_most(line, width), Style::new());
    }
}

/// The last line.
fn keys(app: &App) -> String {
    if app.is_typing {
        return format!(
            "name contains: {}_  Enter keeps it, Esc drops it",
            app.marks.text(&app.filter)
        );
    }
    if let Some(trouble) = &app.trouble {
        return app.marks.text(trouble);
    }
    if app.help {
        return "any key: back".into();
    }
    let filter = match app.filter.is_empty() {
        true => String::new(),
        false => format!("({})", app.marks.text(&app.filter)),
    };
    let replay = match &app.replay {
        Some(_) => "left/right:step p:pause +-:speed",
        None if app.is_frozen => "p:go on +-:interval",
        None => "p:freeze +-:interval",
    };
    let sort = app.sort.name();
    match app.detail.is_some() {
        true => format!("q:back up/down:scroll s:sort r:reverse {replay} ?:help"),
        false => {
            format!("q:quit enter:detail s:sort({sort}) r:reverse /:filter{filter} {replay} ?:help")
        }
    }
}

#[cfg(test)]
mod tests;

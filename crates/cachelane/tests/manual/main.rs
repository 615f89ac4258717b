//! Every command that the manual shows is run, on a test host, and prints what the manual says.

#[path = "../common/mod.rs"]
mod common;

mod classes;
mod reader;

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use classes::{BEFORE, CLASSES, FILES, How, class};
use common::pages::{self, Page, Shown};
use reader::Reader;

/// How long what a command looks at may take to come true.
const LIMIT: Duration = Duration::from_secs(30);

/// Every page's commands, in their order, by one reader of that page.
#[test]
fn root_every_command_of_the_manual_runs_as_it_is_shown() {
    if !lab::testing::root("root_every_command_of_the_manual_runs_as_it_is_shown") {
        return;
    }
    let only = std::env::var("CACHELANE_PAGE").unwrap_or_default();
    let pages = pages::all().into_iter().filter(|page| page.path.contains(&only));
    let mut wrong = Vec::new();
    for group in groups(pages) {
        walk(&group, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// The pages that one reader reads: each by itself, but those of findings together.
fn groups(pages: impl Iterator<Item = Page>) -> Vec<Vec<Page>> {
    let mut groups: Vec<Vec<Page>> = Vec::new();
    for page in
        pages.filter(|page| page.text.contains("```console") || page.text.contains("```toml"))
    {
        let is_finding = |page: &Page| page.path.starts_with("docs/findings/");
        match groups.last_mut() {
            Some(last) if is_finding(&last[0]) && is_finding(&page) => last.push(page),
            _ => groups.push(vec![page]),
        }
    }
    groups
}

fn walk(pages: &[Page], wrong: &mut Vec<String>) {
    let mut reader = Reader::new();
    for (_, path, text) in FILES.iter().filter(|(of, ..)| pages[0].path.starts_with(of)) {
        reader.write(path, text);
    }
    for (of, commands) in BEFORE {
        for command in commands.iter().filter(|_| pages[0].path.starts_with(of)) {
            let ready = (!command.starts_with("cachelane ")).then_some("true");
            let started = reader.start(&format!("before {of}: `{command}`"), command, true, ready);
            wrong.extend(started.err());
        }
    }
    for page in pages {
        for block in page.blocks() {
            match block.kind.as_str() {
                "console" => {
                    for shown in page.commands(&block) {
                        wrong.extend(follow(&mut reader, &shown).err());
                    }
                }
                "toml" => {
                    let text = format!("{}\n", block.lines.join("\n"));
                    // Its first line may say where it is.
                    let path = block.lines[0].strip_prefix("# ");
                    let path = path.filter(|path| path.ends_with(".toml")).unwrap_or("config.toml");
                    reader.write(path, &text);
                    let place = format!("{}:{}", page.path, block.line);
                    let said =
                        reader.run(&place, &format!("cachelane config check -c {path}"), true);
                    if said.status != 0 {
                        wrong.push(format!("{place}: {}{}", said.stdout, said.stderr));
                    }
                }
                _ => {}
            }
        }
    }
    wrong.extend(reader.end());
}

/// Does what a page shows; what is wrong with that.
fn follow(reader: &mut Reader, shown: &Shown) -> Result<(), String> {
    let place = shown.place();
    let (command, is_beside) = shown.parts();
    let (_, _, how) = class(&shown.page, &command).ok_or_else(|| {
        format!("{place}: no line of tests/manual/classes.rs says how this command is run")
    })?;
    let (line, statuses): (String, &[i32]) = match *how {
        How::Foreign(why) => {
            println!("{place}: not run: {why}");
            return Ok(());
        }
        How::Beside(ready) => {
            return reader.start(&place, &command, shown.is_root, Some(ready));
        }
        How::Serves if !is_once(&command) => {
            reader.start(&place, &command, shown.is_root, None)?;
            let printed = soon(|| alike(&shown.output, &reader.printed()));
            return printed.map_err(|why| format!("{place}: {why}"));
        }
        How::Serves => (command, &[0]),
        How::Soon(statuses) => (command, statuses),
        How::Whole(statuses) => (command, statuses),
        How::With(more, why) => {
            println!("{place}: run with {more}: {why}");
            (with(&command, more), &[0])
        }
        How::Instead(that, this, statuses, why) => {
            println!("{place}: run with {this}: {why}");
            assert!(command.contains(that), "{place}: it has no {that}");
            (command.replace(that, this), statuses)
        }
    };
    if is_beside {
        return Err(format!("{place}: it ends by itself, so it is not for the background"));
    }
    let mut look = || {
        let said = reader.run(&place, &line, shown.is_root);
        let printed = format!("{}{}", said.stderr, said.stdout);
        match statuses.contains(&said.status) {
            false => {
                Err(format!("status {}, not {statuses:?}, of `{line}`\n{printed}", said.status))
            }
            true if matches!(how, How::With(..)) => Ok(()),
            // It was shortened, so its figures are others.
            true if matches!(how, How::Instead(..)) => {
                // A table's head says `[95 %]` or `[interval]`, by how many measures varied.
                let is_figure =
                    |line: &str| line.contains(char::is_numeric) || line.contains("[interval]");
                let lines = shown.output.iter().filter(|line| !is_figure(line));
                alike(&lines.cloned().collect::<Vec<_>>(), &printed)
            }
            true => alike(&shown.output, &printed),
        }
    };
    let right = if matches!(how, How::Soon(_)) { soon(look) } else { look() };
    right.map_err(|why| format!("{place}: {why}"))
}

/// Looks until all is right, or for so long that it never will be.
fn soon(mut look: impl FnMut() -> Result<(), String>) -> Result<(), String> {
    let until = Instant::now() + LIMIT;
    loop {
        match look() {
            Err(_) if Instant::now() < until => thread::sleep(Duration::from_millis(50)),
            right => return right,
        }
    }
}

/// Whether a command that else serves ends by itself.
fn is_once(command: &str) -> bool {
    // There it is what is done with packets.
    if command.starts_with("cachelane xsk") {
        return false;
    }
    let words = ["--check", "--dry-run", "--stats", "--help", "--status"];
    command.split_whitespace().any(|word| words.contains(&word))
}

/// A command with more arguments, before what it measures by, pipes or redirections.
fn with(command: &str, more: &str) -> String {
    let at = [" -- ", " > ", " | "].iter().filter_map(|mark| command.find(mark)).min();
    let (before, after) = command.split_at(at.unwrap_or(command.len()));
    format!("{before} {more}{after}")
}

/// Whether all lines that a page shows are among those that were printed, in that order, but for numbers.
/// `...` stands for any lines.
fn alike(shown: &[String], printed: &str) -> Result<(), String> {
    let mut lines = printed.lines();
    for line in shown.iter().filter(|line| !line.trim().is_empty() && *line != "...") {
        if !lines.any(|one| shape(one) == shape(line)) {
            return Err(format!(
                "the page shows {line:?}, in this place of what was printed:\n{printed}"
            ));
        }
    }
    Ok(())
}

/// A line without its numbers, the width of its columns, and the time before what is logged. What is of the
/// machine, such as its name and its CPUs, is left out.
fn shape(line: &str) -> String {
    let of_machine = ["cachelane top ", "lane "].iter().any(|word| line.starts_with(word));
    let is_time = |word: &&str| word.starts_with("20") && word.ends_with('Z');
    let words = line.split_whitespace().skip_while(is_time);
    let words = words.take(if of_machine { 2 } else { usize::MAX }).map(|word| {
        let mut shape = String::new();
        for letter in word.chars() {
            match letter {
                '0'..='9' if shape.ends_with('0') => {}
                '0'..='9' => shape.push('0'),
                _ => shape.push(letter),
            }
        }
        shape
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn what_is_not_printed_as_it_is_shown_is_found() {
    let shown = |text: &str| text.lines().map(Into::into).collect::<Vec<String>>();
    let printed = "2026-11-27T02:12:26.678808Z  INFO relaying :80 with engine auto\n\
        MEMBER     PID   FOR\nmetrics    1465  1s\nrelay.web  22  13s\n";
    for right in
        ["", "INFO relaying :8080 with engine auto\n...\nrelay.web 1 9s", "MEMBER  PID  FOR\n"]
    {
        assert_eq!(alike(&shown(right), printed), Ok(()), "{right}");
    }
    for wrong in
        ["INFO relaying :80 with engine copy", "relay.web 1 1s\nMEMBER PID FOR", "MEMBER PID"]
    {
        assert!(alike(&shown(wrong), printed).is_err(), "{wrong}");
    }
}

#[test]
fn every_command_has_a_class_and_every_class_a_command() {
    let pages = pages::all();
    let console =
        |page: &Page| page.blocks().into_iter().filter(|block| block.kind == "console").collect();
    let mut without = Vec::new();
    let mut unused: BTreeSet<(&str, &str)> =
        CLASSES.iter().map(|(of, beginning, _)| (*of, *beginning)).collect();
    for page in &pages {
        let blocks: Vec<pages::Block> = console(page);
        for shown in blocks.iter().flat_map(|block| page.commands(block)) {
            match class(&shown.page, &shown.parts().0) {
                Some((of, beginning, _)) => drop(unused.remove(&(*of, *beginning))),
                None => without.push(shown.place()),
            }
        }
    }
    assert!(without.is_empty(), "tests/manual/classes.rs has no line for:\n{}", without.join("\n"));
    assert!(unused.is_empty(), "tests/manual/classes.rs has lines for no command: {unused:?}");
    assert!(class("docs/up.md", "rm -rf /").is_none());
}

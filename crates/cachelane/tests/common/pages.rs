//! The pages of the manual: those of docs/SUMMARY.md, and the README, with their blocks of code.

use std::fs;
use std::path::{Path, PathBuf};

/// A page, by its path from the root of the repository.
pub(crate) struct Page {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A fenced block of a page.
pub(crate) struct Block {
    /// `console`, `toml` and so on.
    pub(crate) kind: String,
    /// The number of its first line of text.
    pub(crate) line: usize,
    pub(crate) lines: Vec<String>,
}

/// A command that a page shows, and what it says that the command prints.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) page: String,
    pub(crate) line: usize,
    /// Its prompt is `#`: root types it.
    pub(crate) is_root: bool,
    /// As it stands there, without the prompt; several lines where it goes on behind a backslash.
    pub(crate) command: String,
    pub(crate) output: Vec<String>,
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All pages, in the order of the summary.
pub(crate) fn all() -> Vec<Page> {
    let summary = read("docs/SUMMARY.md");
    let listed = summary.text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let listed = listed.map(|path| read(&format!("docs/{path}")));
    std::iter::once(read("README.md")).chain(listed).collect()
}

pub(crate) fn read(path: &str) -> Page {
    let text = fs::read_to_string(repository().join(path));
    Page { path: path.into(), text: text.unwrap_or_else(|error| panic!("{path}: {error}")) }
}

impl Page {
    /// Its blocks of code.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (number, line) in (1..).zip(self.text.lines()) {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(kind), None) => {
                    open = Some(Block { kind: kind.into(), line: number + 1, lines: Vec::new() });
                }
                (None, Some(block)) => block.lines.push(line.into()),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block of code has no end", self.path);
        blocks
    }

    /// Its text without its blocks of code.
    pub(crate) fn prose(&self) -> String {
        let mut inside = false;
        let is_prose = |line: &&str| {
            let fence = line.trim_start().starts_with("```");
            inside ^= fence;
            !inside && !fence
        };
        self.text.lines().filter(is_prose).map(|line| format!("{line}\n")).collect()
    }

    /// The commands of a block of the kind `console`.
    pub(crate) fn commands(&self, block: &Block) -> Vec<Shown> {
        let mut commands: Vec<Shown> = Vec::new();
        let mut goes_on = false;
        for (number, line) in (block.line..).zip(&block.lines) {
            let prompt = line.strip_prefix("# ").map(|rest| (true, rest));
            let prompt = prompt.or(line.strip_prefix("$ ").map(|rest| (false, rest)));
            // The text format of Prometheus has comments.
            let is_comment = ["# HELP ", "# TYPE "].iter().any(|word| line.starts_with(word));
            match (prompt, commands.last_mut()) {
                (_, Some(last)) if goes_on => last.command += &format!("\n{line}"),
                (Some((is_root, rest)), _) if !is_comment => commands.push(Shown {
                    page: self.path.clone(),
                    line: number,
                    is_root,
                    command: rest.into(),
                    output: Vec::new(),
                }),
                (_, Some(last)) => last.output.push(line.clone()),
                (_, None) => panic!("{}:{number}: output of no command: {line}", self.path),
            }
            let command = commands.last().map(|last| last.command.as_str());
            goes_on = command.is_some_and(|command| command.ends_with('\\'))
                && commands.last().is_some_and(|last| last.output.is_empty());
        }
        commands
    }
}

impl Shown {
    /// Where it stands, for messages.
    pub(crate) fn place(&self) -> String {
        format!("{}:{}: `{}`", self.page, self.line, self.command)
    }

    /// The command without the remark behind it, and whether the page sends it to the background.
    pub(crate) fn parts(&self) -> (String, bool) {
        let mut quote = None;
        let mut before = ' ';
        let mut end = self.command.len();
        for (at, letter) in self.command.char_indices() {
            match (quote, letter) {
                (None, '\'' | '"') => quote = Some(letter),
                (Some(open), _) if open == letter => quote = None,
                (None, '#') if before.is_whitespace() => {
                    end = at;
                    break;
                }
                _ => {}
            }
            before = letter;
        }
        let command = self.command[..end].trim_end();
        match command.strip_suffix(" &") {
            Some(command) => (command.trim_end().into(), true),
            None => (command.into(), false),
        }
    }
}

//! From a tree to members: every key is looked up, every value is read as the subcommand will read it,
//! and all that is wrong is said at once.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command};

use super::claims::{Claim, collisions};
use super::filters::{Filter, Findings, compile};
use super::kinds::{KINDS, Key, Kind, Takes, keys_of_up};
use super::tree::{Node, Origin, Table, Trouble, Value};
use super::{Config, Member, Settings};
use crate::args::duration;

/// Names that are so far from each other are not mistaken for each other.
const ALIKE: f64 = 0.7;
/// What no argument of a process can have.
const NUL: &str = "a NUL character (\\u0000) is in it (expected a text without)";

/// What a tree asks for, as far as it makes sense, what does not, and what nobody knows.
pub(super) fn check(tree: &Table) -> (Config, Findings) {
    let mut checker = Checker::default();
    checker.top(tree);
    let Checker { mut config, mut claims, filters, mut troubles } = checker;
    config.members.sort_by(|a, b| a.name.cmp(&b.name));
    claims.sort_by(|a, b| a.member.cmp(&b.member));
    troubles.append(&mut collisions(&claims));
    let Findings { wrong, unchecked } = compile(filters);
    troubles.extend(wrong);
    troubles.sort();
    (config, Findings { wrong: troubles, unchecked })
}

#[derive(Default)]
struct Checker {
    config: Config,
    claims: Vec<Claim>,
    filters: Vec<Filter>,
    troubles: Vec<Trouble>,
}

impl Checker {
    fn say(&mut self, origin: &Origin, message: impl Into<String>) {
        self.troubles.push(Trouble { origin: Some(origin.clone()), message: message.into() });
    }

    fn top(&mut self, tree: &Table) {
        // The others use it.
        if let Some(node) = tree.get("lanes") {
            self.config.lanes = self.text("lanes", node);
        }
        for (key, node) in tree {
            match (key.as_str(), Kind::of(key)) {
                ("lanes", _) => {}
                ("log", _) => self.log(node),
                ("up", _) => self.up(node),
                (_, Some(kind)) if kind.is_named => self.named(kind, node),
                (_, Some(kind)) => self.member(kind, kind.name.to_owned(), node),
                (key, None) => {
                    let kinds = KINDS.iter().map(|kind| kind.name);
                    let known = kinds.chain(["lanes", "log", "up"]).map(str::to_owned);
                    self.unknown("", key, node, known.collect());
                }
            }
        }
    }

    fn table<'a>(&mut self, name: &str, node: &'a Node) -> Option<&'a Table> {
        match &node.value {
            Value::Table(table) => Some(table),
            other => {
                self.say(&node.origin, format!("{name} is {} (expected a table)", other.what()));
                None
            }
        }
    }

    fn text(&mut self, name: &str, node: &Node) -> Option<String> {
        match &node.value {
            Value::Text(text) if text.contains('\0') => {
                self.say(&node.origin, format!("{name}: {NUL}"));
                None
            }
            Value::Text(text) => Some(text.clone()),
            other => {
                self.say(&node.origin, format!("{name} is {} (expected a text)", other.what()));
                None
            }
        }
    }

    fn unknown(&mut self, table: &str, key: &str, node: &Node, known: Vec<String>) {
        let near = |name: &String| strsim::jaro_winkler(name, key);
        let nearest = known.iter().max_by(|a, b| near(a).total_cmp(&near(b)));
        let hint = match nearest.filter(|name| near(name) > ALIKE) {
            Some(name) => format!("did you mean {name}?"),
            None => format!("expected {}", known.join(", ")),
        };
        let whose = if table.is_empty() { String::new() } else { format!(" of {table}") };
        self.say(&node.origin, format!("unknown key {key}{whose} ({hint})"));
    }

    fn log(&mut self, node: &Node) {
        let Some(table) = self.table("log", node) else { return };
        for (key, node) in table {
            match key.as_str() {
                "level" => {
                    let level = self.text("log.level", node);
                    let parse = |text: &String| text.parse::<tracing_subscriber::EnvFilter>();
                    if let Some(Err(error)) = level.as_ref().map(parse) {
                        let text = level.clone().unwrap_or_default();
                        let expected = "expected error, warn, info, debug, trace or a filter";
                        self.say(&node.origin, format!("log.level '{text}': {error} ({expected})"));
                    }
                    self.config.log = level;
                }
                key => self.unknown("log", key, node, vec!["level".into()]),
            }
        }
    }

    fn up(&mut self, node: &Node) {
        let Some(table) = self.table("up", node) else { return };
        let keys = keys_of_up();
        for (name, node) in table {
            let Some(key) = keys.iter().find(|key| key.name() == *name) else {
                self.unknown("up", name, node, keys.iter().map(Key::name).collect());
                continue;
            };
            let Some(text) = self.text(&format!("up.{name}"), node) else { continue };
            let Settings { silent_after, retry_after, retry_at_most, watch } =
                &mut self.config.settings;
            let setting = match key.arg.get_id().as_str() {
                "silent_after" => silent_after,
                "retry_after" => retry_after,
                "watch" => watch,
                _ => retry_at_most,
            };
            match duration(&text) {
                Ok(duration) => *setting = Some(duration),
                Err(error) => self.say(&node.origin, format!("up.{name} '{text}': {error}")),
            }
        }
    }

    fn named(&mut self, kind: Kind, node: &Node) {
        let Some(table) = self.table(kind.name, node) else { return };
        for (name, node) in table {
            let full = format!("{}.{name}", kind.name);
            match node.value {
                Value::Table(_) if is_name(name) => self.member(kind, full, node),
                Value::Table(_) => {
                    let expected = "letters, digits, '-', '_' and '.', at most 60";
                    self.say(
                        &node.origin,
                        format!("name '{name}' of a {} (expected {expected})", kind.name),
                    );
                }
                _ => {
                    let message = format!(
                        "{full} is {} (expected a table for each {}, such as [{}.main])",
                        node.value.what(),
                        kind.name,
                        kind.name
                    );
                    self.say(&node.origin, message);
                }
            }
        }
    }

    fn member(&mut self, kind: Kind, name: String, node: &Node) {
        let Some(table) = self.table(&name, node) else { return };
        let before = self.troubles.len();
        let (command, keys) = (kind.command(), kind.keys());
        let mut enabled = true;
        let (mut options, mut words) = (Vec::new(), Vec::new());
        let (mut values, mut claims) = (Vec::new(), Vec::new());
        for (key, node) in table {
            if key == "enabled" {
                match node.value {
                    Value::Bool(flag) => enabled = flag,
                    _ => self.say(&node.origin, format!("{name}.enabled: expected true or false")),
                }
                continue;
            }
            let Some(found) = keys.iter().find(|known| known.name() == *key) else {
                let known = keys.iter().map(Key::name).chain(["enabled".into()]).collect();
                self.unknown(&name, key, node, known);
                continue;
            };
            let full = format!("{name}.{key}");
            for (origin, argument) in self.arguments(&full, found, node) {
                if let Err(message) = alone(&command, found, &argument) {
                    self.say(&origin, format!("{full}: {message}"));
                }
                claims.extend(Claim::new(&name, kind, key, &argument, &origin));
                self.filters.extend(Filter::new(&full, &argument, &origin));
                values.push((key.clone(), argument.clone()));
                match found.arg.is_positional() {
                    true => words.push(argument),
                    false => options.push(argument),
                }
            }
        }
        if let (Some(lanes), true) = (&self.config.lanes, takes(&command, "lanes")) {
            options.push(format!("--lanes={lanes}"));
        }
        if kind.name == "bridge" && !words.is_empty() {
            options.push("--wait".into());
        }
        if !words.is_empty() {
            options.push("--".into());
        }
        options.append(&mut words);
        if self.troubles.len() > before || !enabled {
            return;
        }
        match parse(&command, &options) {
            Ok(_) => {
                let origin = node.origin.clone();
                self.claims.append(&mut claims);
                self.config.members.push(Member { name, kind, args: options, values, origin });
            }
            Err(error) => {
                let message = format!("{name}: {}", together(&error, &keys));
                self.say(&node.origin, message);
            }
        }
    }

    /// What is given on the command line for a key, and where each part of it was set.
    fn arguments(&mut self, full: &str, key: &Key, node: &Node) -> Vec<(Origin, String)> {
        let list = match &node.value {
            Value::List(list) if key.is_list() => list.as_slice(),
            Value::List(_) => {
                self.say(&node.origin, format!("{full} is a list (expected one value)"));
                return Vec::new();
            }
            _ => std::slice::from_ref(node),
        };
        let mut arguments = Vec::new();
        for node in list {
            let expected = match key.takes() {
                Takes::Flag | Takes::OnOff => "true or false",
                Takes::Number => "a number",
                Takes::Text => "a text",
            };
            let text = match (&node.value, key.takes()) {
                (Value::Bool(true), Takes::Flag) => {
                    arguments.push((node.origin.clone(), format!("--{}", key.name())));
                    continue;
                }
                (Value::Bool(false), Takes::Flag) => continue,
                (Value::Bool(flag), Takes::OnOff) => if *flag { "on" } else { "off" }.to_owned(),
                (Value::Number(text), Takes::Number) => decimal(text),
                // A file's mode, in octal; an Ethernet type, in hexadecimal.
                (Value::Number(text), Takes::Text) => text.trim_start_matches("0o").to_owned(),
                (Value::Text(text), _) if text.contains('\0') => {
                    self.say(&node.origin, format!("{full}: {NUL}"));
                    continue;
                }
                (Value::Text(text), _) if !matches!(key.takes(), Takes::Flag) => text.clone(),
                (other, _) => {
                    let what = other.what();
                    self.say(&node.origin, format!("{full} is {what} (expected {expected})"));
                    continue;
                }
            };
            let argument = match key.arg.is_positional() {
                true => text,
                false => format!("--{}={text}", key.name()),
            };
            arguments.push((node.origin.clone(), argument));
        }
        arguments
    }
}

/// A number as options take it.
fn decimal(text: &str) -> String {
    let read = |digits, radix| u64::from_str_radix(digits, radix).ok();
    let number = match text.split_at_checked(2) {
        Some(("0x", digits)) => read(digits, 16),
        Some(("0o", digits)) => read(digits, 8),
        Some(("0b", digits)) => read(digits, 2),
        _ => None,
    };
    number.map_or_else(|| text.to_owned(), |number| number.to_string())
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=60).contains(&name.len()) && name.chars().all(fits)
}

fn takes(command: &Command, id: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == id)
}

fn parse(command: &Command, options: &[String]) -> Result<ArgMatches, clap::Error> {
    let name = std::iter::once(command.get_name().to_owned());
    command.clone().try_get_matches_from(name.chain(options.iter().cloned()))
}

/// Reads one value by itself; what is wrong with it.
fn alone(command: &Command, key: &Key, argument: &str) -> Result<(), String> {
    let words = match key.arg.is_positional() {
        true => vec!["--".to_owned(), argument.to_owned()],
        false => vec![argument.to_owned()],
    };
    match parse(command, &words) {
        Err(error) if is_of_value(error.kind()) => Err(of_value(&error, argument)),
        _ => Ok(()),
    }
}

/// Whether an error is in a value, and not in what else there is.
fn is_of_value(kind: ErrorKind) -> bool {
    !matches!(kind, ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict)
}

fn of_value(error: &clap::Error, argument: &str) -> String {
    use std::error::Error as _;

    let value = argument.split_once('=').map_or(argument, |(_, value)| value);
    if let Some(source) = error.source() {
        let said = source.to_string();
        return if said.contains(value) { said } else { format!("'{value}': {said}") };
    }
    let valid = strings(error, ContextKind::ValidValue);
    match valid.is_empty() {
        true => format!("'{value}': {}", first_line(error)),
        false => format!("'{value}' is no such value (expected {})", valid.join(", ")),
    }
}

/// What is wrong with values that are right by themselves.
fn together(error: &clap::Error, keys: &[Key]) -> String {
    let key = |shown: String| {
        // As `--key <VALUE>` or, of an argument without a name, `<VALUE>` or `[VALUE]...`.
        let word = shown.split(' ').next().unwrap_or_default().trim_end_matches("...");
        let is_it = |key: &&Key| match key.arg.get_long() {
            Some(long) => word.strip_prefix("--") == Some(long),
            None => {
                let names = key.arg.get_value_names().unwrap_or_default();
                names.iter().any(|name| word.trim_matches(['<', '>', '[', ']']) == name.as_str())
            }
        };
        keys.iter().find(is_it).map_or(shown.clone(), Key::name)
    };
    let named = |kind| strings(error, kind).into_iter().map(key).collect::<Vec<_>>();
    let args = named(ContextKind::InvalidArg);
    match error.kind() {
        ErrorKind::MissingRequiredArgument => format!("{} is missing", args.join(" and ")),
        ErrorKind::ArgumentConflict => {
            let prior = named(ContextKind::PriorArg);
            format!("{} cannot be used with {}", args.join(", "), prior.join(", "))
        }
        _ => first_line(error),
    }
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

fn strings(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        Some(ContextValue::StyledStr(text)) => vec![text.to_string()],
        _ => Vec::new(),
    }
}

//! A configuration as a tree of values, each of which knows where it was set. Files are laid over each
//! other: a table takes up what the next one says key by key, everything else is replaced.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where something was set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// In a file; lines and columns are counted from 1.
    File { path: Rc<str>, line: usize, column: usize },
    /// By `--set` on the command line.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
            Origin::Flag => f.write_str("--set"),
        }
    }
}

/// Something wrong in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Trouble {
    /// Where; none for what is nowhere.
    pub(crate) origin: Option<Origin>,
    pub(crate) message: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Some(origin) => write!(f, "{origin}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// A value and where it was set; of a table, where it was set first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) origin: Origin,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    /// A number, as it is written, without underscores.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Table(Table),
}

pub(crate) type Table = BTreeMap<String, Node>;

impl Value {
    /// What it is, for people.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }
}

impl Node {
    /// Reads a file's text: as much of it as makes sense, and all that does not.
    pub(crate) fn parse(path: &str, text: &str) -> (Table, Vec<Trouble>) {
        let file = File { path: path.into(), text };
        let (table, errors) = DeTable::parse_recoverable(text);
        let troubles = errors
            .iter()
            .map(|error| Trouble {
                origin: error.span().map(|span| file.at(span.start)),
                message: error.message().to_owned(),
            })
            .collect();
        (file.table(table.get_ref()), troubles)
    }

    /// Reads `KEY.KEY=VALUE`, where a value that is not TOML is a text.
    pub(crate) fn of_flag(text: &str) -> Result<Table, Trouble> {
        let wrong = |message: String| Trouble { origin: Some(Origin::Flag), message };
        let Some((key, value)) = text.split_once('=') else {
            return Err(wrong(format!(
                "'{text}': expected KEY=VALUE, such as relay.web.engine=copy"
            )));
        };
        let quoted = |value: &str| format!("{key}={}", toml::Value::String(value.to_owned()));
        let read = |line: &str| {
            let (mut table, troubles) = Node::parse("", line);
            table.values_mut().for_each(Node::mark_as_flag);
            troubles.first().map_or(Ok(table), |trouble| Err(trouble.message.clone()))
        };
        let read = read(&format!("{key}={value}")).or_else(|_| read(&quoted(value)));
        read.map_err(|message| wrong(format!("'{text}': {message}")))
    }

    fn mark_as_flag(&mut self) {
        self.origin = Origin::Flag;
        match &mut self.value {
            Value::Table(table) => table.values_mut().for_each(Node::mark_as_flag),
            Value::List(list) => list.iter_mut().for_each(Node::mark_as_flag),
            _ => {}
        }
    }
}

/// Lays `over` over `under`.
pub(crate) fn lay_over(under: &mut Table, over: Table) {
    for (key, node) in over {
        match (under.get_mut(&key).map(|node| &mut node.value), node.value) {
            (Some(Value::Table(under)), Value::Table(over)) => lay_over(under, over),
            (_, value) => drop(under.insert(key, Node { origin: node.origin, value })),
        }
    }
}

/// A file while it is read.
struct File<'a> {
    path: Rc<str>,
    text: &'a str,
}

impl File<'_> {
    fn at(&self, offset: usize) -> Origin {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        Origin::File {
            path: Rc::clone(&self.path),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        let entry = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let node = Node { origin: self.at(key.span().start), value: self.value(value) };
            (key.get_ref().to_string(), node)
        };
        table.iter().map(entry).collect()
    }

    fn value(&self, value: &Spanned<DeValue<'_>>) -> Value {
        match value.get_ref() {
            DeValue::Boolean(flag) => Value::Bool(*flag),
            // As it is written.
            DeValue::Integer(number) => Value::Number(match number.radix() {
                16 => format!("0x{}", number.as_str()),
                8 => format!("0o{}", number.as_str()),
                2 => format!("0b{}", number.as_str()),
                _ => number.as_str().to_owned(),
            }),
            DeValue::Float(number) => Value::Number(number.as_str().to_owned()),
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Datetime(time) => Value::Text(time.to_string()),
            DeValue::Array(list) => {
                let node = |one: &Spanned<DeValue<'_>>| Node {
                    origin: self.at(one.span().start),
                    value: self.value(one),
                };
                Value::List(list.iter().map(node).collect())
            }
            DeValue::Table(table) => Value::Table(self.table(table)),
        }
    }
}

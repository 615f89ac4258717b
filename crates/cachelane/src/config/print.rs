//! A configuration as it is in force, one to begin with, and what an editor needs to know of one.

use serde_json::{Map, json};

use super::kinds::{KINDS, Key, Kind, Takes, keys_of_up};
use super::tree::{Node, Origin, Table, Value};
use crate::terminal::wrap;

/// The tree as TOML, with where each value was set.
pub(crate) fn dump(tree: &Table) -> String {
    let mut text = String::new();
    dump_table(&mut text, "", tree);
    text.trim_start().to_owned()
}

fn dump_table(text: &mut String, name: &str, table: &Table) {
    let (tables, values): (Vec<_>, Vec<_>) =
        table.iter().partition(|(_, node)| matches!(node.value, Value::Table(_)));
    if !values.is_empty() || tables.is_empty() && !name.is_empty() {
        if !name.is_empty() {
            text.push_str(&format!("\n[{name}]\n"));
        }
        for (key, node) in values {
            text.push_str(&format!("{} = {} # {}\n", bare(key), toml(&node.value), node.origin));
        }
    }
    for (key, node) in tables {
        let Value::Table(table) = &node.value else { continue };
        let name = if name.is_empty() { bare(key) } else { format!("{name}.{}", bare(key)) };
        dump_table(text, &name, table);
    }
}

fn toml(value: &Value) -> String {
    match value {
        Value::Bool(flag) => flag.to_string(),
        Value::Number(text) => text.clone(),
        Value::Text(text) => quoted(text),
        Value::List(list) => {
            let items: Vec<_> = list.iter().map(|node| toml(&node.value)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Table(table) => {
            let entry =
                |(key, node): (&String, &Node)| format!("{} = {}", bare(key), toml(&node.value));
            let entries: Vec<_> = table.iter().map(entry).collect();
            format!("{{ {} }}", entries.join(", "))
        }
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A key, in quotes where it needs them.
fn bare(key: &str) -> String {
    let is_bare =
        !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if is_bare { key.to_owned() } else { quoted(key) }
}

/// The tree for programs: each value, and where it was set.
pub(crate) fn dump_json(tree: &Table) -> serde_json::Value {
    let one = |(key, node): (&String, &Node)| {
        let value = match &node.value {
            Value::Table(table) => dump_json(table),
            value => json!({"value": plain(value), "origin": origin(&node.origin)}),
        };
        (key.clone(), value)
    };
    tree.iter().map(one).collect::<Map<_, _>>().into()
}

fn plain(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(flag) => (*flag).into(),
        Value::Number(text) => serde_json::from_str(text).unwrap_or_else(|_| text.clone().into()),
        Value::Text(text) => text.clone().into(),
        Value::List(list) => list.iter().map(|node| plain(&node.value)).collect(),
        Value::Table(table) => dump_json(table),
    }
}

/// Where something was set, for programs.
pub(crate) fn origin(origin: &Origin) -> serde_json::Value {
    match origin {
        Origin::File { path, line, column } => {
            json!({"file": path.as_ref(), "line": line, "column": column})
        }
        Origin::Flag => json!({"flag": "--set"}),
    }
}

const HEAD: &str = "\
# The configuration of cachelane up. Everything here is commented out; what a key is then is shown.
#
# Files are laid over each other, key by key: /usr/lib/cachelane/*.toml, this one
# (/etc/cachelane/config.toml), /etc/cachelane/conf.d/*.toml by name, and --set on the command line.
# cachelane config check finds what is wrong, cachelane config dump shows what is in force and where it
# was set, and SIGHUP (systemctl reload cachelane) applies what has changed, and that alone.
#
# A key in the table of a mechanism is the option of its subcommand: engine = \"copy\" in [relay.web] is
# --engine copy of cachelane relay. An option that may be repeated takes a list.

# Lanes (sets of CPUs that share a last-level cache), where they are not as the machine reports them.
#lanes = \"0-7|8-15\"

[log]
# error, warn, info, debug, trace, or a filter.
#level = \"info\"

[up]
";

/// A configuration to begin with: all keys, commented out, with their meaning and defaults.
pub(crate) fn default_file() -> String {
    let mut text = HEAD.to_owned();
    keys_of_up().iter().for_each(|key| commented(&mut text, key));
    for kind in KINDS {
        let table =
            if kind.is_named { format!("{}.NAME", kind.name) } else { kind.name.to_owned() };
        text.push_str(&format!("\n# {} (cachelane {}).\n#[{table}]\n", kind.what, kind.name));
        let on = "# Whether it runs: false takes out what another file has.\n#enabled = true\n";
        text.push_str(on);
        kind.keys().iter().for_each(|key| commented(&mut text, key));
    }
    text
}

fn commented(text: &mut String, key: &Key) {
    let needed = if key.is_required() { " (required)" } else { "" };
    for line in wrap(&format!("{}{needed}", key.help()), 98).lines() {
        text.push_str(&format!("# {}\n", line.trim()));
    }
    text.push_str(&format!("#{} = {}\n", key.name(), example(key)));
}

/// The default, or what a value looks like.
fn example(key: &Key) -> String {
    let shown = key.arg.get_value_names().and_then(|names| names.first().map(ToString::to_string));
    let value = match (key.takes(), key.default()) {
        (Takes::Flag, _) => "false".to_owned(),
        (Takes::Number, Some(default)) => default,
        (Takes::Number, None) => shown.unwrap_or_default(),
        (Takes::OnOff, Some(default)) => (default == "on").to_string(),
        (_, Some(default)) => quoted(&default),
        (_, None) => quoted(&shown.unwrap_or_default()),
    };
    if key.is_list() { format!("[{value}]") } else { value }
}

/// A JSON schema (draft 7) of a configuration.
pub(crate) fn schema() -> serde_json::Value {
    let object = |properties: Map<String, serde_json::Value>, required: Vec<String>| {
        let mut object =
            json!({"type": "object", "additionalProperties": false, "properties": properties});
        if !required.is_empty() {
            object["required"] = required.into();
        }
        object
    };
    let mut top = Map::new();
    let lanes = "Lanes (sets of CPUs that share a last-level cache), such as 0-7|8-15.";
    top.insert("lanes".into(), json!({"type": "string", "description": lanes}));
    let level =
        json!({"type": "string", "description": "error, warn, info, debug, trace, or a filter."});
    top.insert("log".into(), object(Map::from_iter([("level".into(), level)]), Vec::new()));
    let up = keys_of_up().iter().map(|key| (key.name(), property(key))).collect();
    top.insert("up".into(), object(up, Vec::new()));
    for kind in KINDS {
        top.insert(kind.name.into(), of_kind(kind, &object));
    }
    let mut schema = object(top, Vec::new());
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema["title"] = "The configuration of cachelane up".into();
    schema
}

fn of_kind(
    kind: Kind,
    object: &dyn Fn(Map<String, serde_json::Value>, Vec<String>) -> serde_json::Value,
) -> serde_json::Value {
    let keys = kind.keys();
    let mut properties: Map<_, _> = keys.iter().map(|key| (key.name(), property(key))).collect();
    let enabled = "Whether it runs: false takes out what another file has.";
    properties.insert(
        "enabled".into(),
        json!({"type": "boolean", "default": true, "description": enabled}),
    );
    // What is required may stand in another file.
    let table = object(properties, Vec::new());
    match kind.is_named {
        true => json!({"type": "object", "description": kind.what, "additionalProperties": table}),
        false => table,
    }
}

fn property(key: &Key) -> serde_json::Value {
    let (default, values) = (key.default(), key.values());
    let mut one = match key.takes() {
        Takes::Flag => json!({"type": "boolean", "default": false}),
        Takes::OnOff => json!({"enum": [true, false, "on", "off"], "default": default}),
        Takes::Number => {
            let mut number = json!({"type": "integer", "minimum": 0});
            if let Some(default) = default.and_then(|text| text.parse::<u64>().ok()) {
                number["default"] = default.into();
            }
            number
        }
        Takes::Text => {
            let mut text = json!({"type": ["string", "number"]});
            if !values.is_empty() {
                text = json!({"type": "string", "enum": values});
            }
            if let Some(default) = default {
                text["default"] = default.into();
            }
            text
        }
    };
    if key.is_list() {
        let item = one.clone();
        one = json!({"anyOf": [item.clone(), {"type": "array", "items": item}]});
    }
    one["description"] = key.help().into();
    one
}

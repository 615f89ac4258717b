//! What a configuration may say: the tables, and the keys in each. A key is an option of the subcommand
//! that the table is for, so a new option of `cachelane relay` is a new key of `[relay.NAME]`.

use std::sync::LazyLock;

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use crate::Cli;

/// Options that a configuration does not take: the daemon gives these itself, or they ask for something
/// else than to run.
const NOT_CONFIGURED: [&str; 16] = [
    "check", "count", "dry_run", "help", "interval", "json", "lanes", "name", "once", "quiet",
    "replace", "stats", "time", "verbose", "version", "wait",
];

/// Of `cachelane up`, these alone: the others say where the configuration is, or ask for something else.
const OF_UP: [&str; 4] = ["silent_after", "retry_after", "retry_at_most", "watch"];

/// What a member of a configuration does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    /// The subcommand, and the first part of the table's name.
    pub(crate) name: &'static str,
    /// Whether there may be several, each in a table `[KIND.NAME]`; else there is one, in `[KIND]`.
    pub(crate) is_named: bool,
    /// What it is for, in a configuration.
    pub(crate) what: &'static str,
}

/// All of them.
pub(crate) const KINDS: [Kind; 5] = [
    Kind { name: "bridge", is_named: true, what: "Linux bridges that get a fast path" },
    Kind {
        name: "lend",
        is_named: true,
        what: "A device whose packets are lent to other processes",
    },
    Kind { name: "metrics", is_named: false, what: "Figures of all processes, for Prometheus" },
    Kind { name: "relay", is_named: true, what: "A service whose connections are relayed" },
    Kind {
        name: "steer",
        is_named: true,
        what: "A device whose flows are steered to their consumers",
    },
];

impl Kind {
    pub(crate) fn of(name: &str) -> Option<Kind> {
        KINDS.into_iter().find(|kind| kind.name == name)
    }

    /// The subcommand's arguments.
    pub(crate) fn command(self) -> Command {
        command(self.name)
    }

    /// What its table may say.
    pub(crate) fn keys(self) -> Vec<Key> {
        keys(&self.command(), |id| !NOT_CONFIGURED.contains(&id))
    }

    /// Whether a successor can take over from it while it runs, so that nobody notices.
    pub(crate) fn is_replaced(self) -> bool {
        self.name == "relay"
    }

    /// Whether it has something to do on SIGHUP.
    pub(crate) fn heeds_hangup(self) -> bool {
        self.name == "relay"
    }

    /// What a key is where it is not set.
    pub(crate) fn default(self, key: &str) -> Option<String> {
        self.keys().iter().find(|one| one.name() == key)?.default()
    }

    /// The knob that is set while it runs where this key changes, if there is one.
    pub(crate) fn knob(self, key: &str) -> Option<&'static str> {
        let knobs = [
            ("bridge", "fastpath", "bridge.fastpath"),
            ("bridge", "fdb", "bridge.fdb"),
            ("lend", "alien-free", "frames.alien_free"),
            ("relay", "cpus", "relay.cpus"),
            ("relay", "engine", "relay.engine"),
            ("steer", "llc-affinity", "steer.llc_affinity"),
        ];
        knobs.iter().find(|(kind, of, _)| (*kind, *of) == (self.name, key)).map(|(.., knob)| *knob)
    }
}

/// What `[up]` may say.
pub(crate) fn keys_of_up() -> Vec<Key> {
    keys(&command("up"), |id| OF_UP.contains(&id))
}

/// All subcommands, which takes a while to put together.
static ALL: LazyLock<Command> = LazyLock::new(|| {
    let mut all = Cli::command();
    all.build();
    all
});

fn command(name: &str) -> Command {
    let found = ALL.find_subcommand(name).cloned();
    // The names are those of subcommands, as a test has it.
    found.unwrap_or_default()
}

fn keys(command: &Command, is_key: impl Fn(&str) -> bool) -> Vec<Key> {
    let args =
        command.get_arguments().filter(|arg| is_key(arg.get_id().as_str()) && !arg.is_hide_set());
    args.map(|arg| Key { arg: arg.clone() }).collect()
}

/// What one key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// `true` or `false`; said on the command line by giving the option or not.
    Flag,
    /// `true` or `false` for `on` or `off`, and the names.
    OnOff,
    Number,
    Text,
}

/// A key, which is an argument of a subcommand.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) arg: Arg,
}

impl Key {
    /// As it is written: the long option, or the argument's name.
    pub(crate) fn name(&self) -> String {
        self.arg
            .get_long()
            .map_or_else(|| self.arg.get_id().as_str().replace('_', "-"), str::to_owned)
    }

    pub(crate) fn takes(&self) -> Takes {
        if matches!(self.arg.get_action(), ArgAction::SetTrue) {
            return Takes::Flag;
        }
        let values = self.values();
        if values.iter().any(|name| name == "on") && values.iter().any(|name| name == "off") {
            return Takes::OnOff;
        }
        let id = self.arg.get_value_parser().type_id();
        let number = [
            std::any::TypeId::of::<u8>(),
            std::any::TypeId::of::<u16>(),
            std::any::TypeId::of::<u32>(),
            std::any::TypeId::of::<u64>(),
            std::any::TypeId::of::<usize>(),
        ];
        if number.iter().any(|one| id == *one) && self.arg.get_value_names().is_some_and(is_number)
        {
            return Takes::Number;
        }
        Takes::Text
    }

    /// Whether it takes a list.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
            || self.arg.get_num_args().is_some_and(|count| count.max_values() > 1)
    }

    /// Whether there must be one.
    pub(crate) fn is_required(&self) -> bool {
        self.arg.is_required_set()
    }

    /// The values that it chooses from; none where it takes others.
    pub(crate) fn values(&self) -> Vec<String> {
        let named = self.arg.get_possible_values();
        let shown = named.iter().filter(|value| !value.is_hide_set());
        match self.takes_bool() {
            true => Vec::new(),
            false => shown.map(|value| value.get_name().to_owned()).collect(),
        }
    }

    fn takes_bool(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse)
    }

    pub(crate) fn default(&self) -> Option<String> {
        if self.takes_bool() {
            return Some("false".into());
        }
        let default = self.arg.get_default_values().first()?;
        Some(default.to_string_lossy().into_owned())
    }

    /// What it means, in words that name keys, not options.
    pub(crate) fn help(&self) -> String {
        let help = self.arg.get_long_help().or(self.arg.get_help());
        help.map(ToString::to_string).unwrap_or_default()
    }
}

/// Whether it is shown as a number: others are of such a type and written otherwise, as sizes are.
fn is_number(names: &[clap::builder::Str]) -> bool {
    names.iter().all(|name| matches!(name.as_str(), "N" | "PERCENT" | "BYTES" | "MICROSECONDS"))
}

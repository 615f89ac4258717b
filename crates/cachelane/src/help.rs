//! Help of one screen: of each command with many options, the ten that matter most. `--help-all` has
//! the rest, as the manual pages and the book have.

use clap::{Arg, Command};

/// A command, as its names are written behind `cachelane`, and what its help says: of an option, by its
/// name; of an argument, by its name in capitals.
type Page = (&'static str, &'static [(&'static str, &'static str)]);

/// What is said where. Each line has room on a terminal of 80 columns.
const PAGES: &[Page] = &[
    (
        "relay",
        &[
            ("listen", "Address to accept connections at"),
            ("to", "Backend, with its options"),
            ("engine", "How bytes are moved"),
            ("cpus", "CPUs to work on"),
            ("balance", "Which backend is next"),
            ("max-connections", "Most connections at a time"),
            ("idle-timeout", "Ends what is idle"),
            ("access-log", "Where connections are logged"),
            ("replace", "Take over from one that runs"),
            ("stats", "Ask one that runs"),
        ],
    ),
    (
        "bridge",
        &[
            ("NAME", "Bridges, or patterns such as 'br-*'"),
            ("all", "All bridges of this host"),
            ("wait", "Wait for those that are not there"),
            ("check", "Say what would be fast, and end"),
            ("fastpath", "Whether it begins switched on"),
            ("fdb", "How stations are found"),
            ("max-stations", "Most stations that are known"),
            ("name", "Name of this process"),
            ("dry-run", "Check everything and end"),
            ("json", "Print JSON with --check"),
        ],
    ),
    (
        "steer",
        &[
            ("IFACE", "Device to steer on"),
            ("cpus", "CPUs that flows may go to"),
            ("lanes", "Lanes, if not as the machine says"),
            ("llc-affinity", "Whether it begins switched on"),
            ("records", "Most flows that are known"),
            ("queue", "Packets that wait for a CPU"),
            ("for", "Stop after this time"),
            ("force", "Steer where it may not pay"),
            ("check", "Say whether it pays, and end"),
            ("dry-run", "Check everything and end"),
            ("json", "Print JSON with --check"),
        ],
    ),
    (
        "xsk send",
        &[
            ("IFACE", "Device to send from"),
            ("dst-mac", "Hardware addresses to send to"),
            ("dst", "IP addresses to send to"),
            ("sport", "Ports to send from"),
            ("packet", "udp, tcp-syn, icmp-echo or arp"),
            ("size", "Bytes, a list, or imix"),
            ("rate", "Such as 5k, 1.5M or 10Gbit"),
            ("pcap", "Send a capture file"),
            ("latency", "Measure the way there and back"),
            ("for", "Stop after this time"),
            ("json", "Print JSON"),
        ],
    ),
    (
        "xsk drop",
        &[
            ("IFACE", "Device to receive from"),
            ("udp-port", "Only UDP to these ports"),
            ("check", "Look for losses and their like"),
            ("queues", "Queues of the device"),
            ("cpus", "CPUs to work on"),
            ("mode", "copy, zero-copy or auto"),
            ("count", "Stop after so many packets"),
            ("for", "Stop after this time"),
            ("csv", "Figures of each second"),
            ("dry-run", "Check everything and end"),
            ("json", "Print JSON"),
        ],
    ),
    (
        "xsk forward",
        &[
            ("IFACE", "Device to receive from"),
            ("to", "Device to send to, if another"),
            ("both", "In both directions"),
            ("udp-port", "Only UDP to these ports"),
            ("to-queues", "Queues to send to"),
            ("queues", "Queues to receive from"),
            ("cpus", "CPUs to work on"),
            ("mode", "copy, zero-copy or auto"),
            ("for", "Stop after this time"),
            ("dry-run", "Check everything and end"),
            ("json", "Print JSON"),
        ],
    ),
    (
        "xsk search",
        &[
            ("IFACE", "Device to send from"),
            ("receive", "Device that packets come to"),
            ("sizes", "Sizes of packets"),
            ("trial", "Time of one trial"),
            ("loss", "What may be lost, in percent"),
            ("precision", "How exact, in percent"),
            ("max-rate", "Highest rate to try"),
            ("dst-mac", "Hardware address to send to"),
            ("sport", "Ports to send from"),
            ("html", "Write a page"),
            ("json", "Print JSON"),
        ],
    ),
    (
        "lend",
        &[
            ("IFACE", "Device to receive from"),
            ("socket", "Where borrowers connect"),
            ("socket-mode", "Who may connect, in octal"),
            ("udp-port", "Only UDP to these ports"),
            ("quota", "Most loans of a borrower"),
            ("borrowers", "Most borrowers"),
            ("private", "None reads what others get"),
            ("delay", "Most time that a packet waits"),
            ("queues", "Queues of the device"),
            ("cpus", "CPUs to work on"),
            ("json", "Print JSON"),
        ],
    ),
    (
        "borrow",
        &[
            ("PATH", "The lender's socket"),
            ("COMMAND", "A program that uses libpcap"),
            ("pcap", "Write a capture file"),
            ("worker", "So many workers that read"),
            ("mirror", "Get every packet"),
            ("group", "Share with this group alone"),
            ("share", "With a command: share flows"),
            ("reconnect", "Go on with a new lender"),
            ("quota", "Most packets to hold"),
            ("for", "Stop after this time"),
            ("json", "Print JSON"),
        ],
    ),
    (
        "up",
        &[
            ("config", "Configuration: file or folder"),
            ("set", "Set a key, over all files"),
            ("replace", "Take over from one that runs"),
            ("watch", "Look for changes so often"),
            ("silent-after", "When a member counts as stuck"),
            ("retry-after", "Pause before a new start"),
            ("name", "Name of this process"),
            ("status", "Ask one that runs"),
            ("dry-run", "Say what would be started"),
            ("json", "Print JSON with --status"),
        ],
    ),
    (
        "metrics",
        &[
            ("listen", "Address to serve them at"),
            ("once", "Print them and end"),
            ("name", "Name of this process"),
            ("dry-run", "Check everything and end"),
        ],
    ),
    (
        "top",
        &[
            ("pid", "Only this process"),
            ("name", "Only the process of this name"),
            ("interval", "Time between two looks"),
            ("once", "Print one look and end"),
            ("record", "Write what is seen to a file"),
            ("replay", "Show a recorded file"),
            ("speed", "So many times as fast"),
            ("lanes", "Lanes, if not as the machine says"),
            ("for", "Stop after this time"),
            ("json", "Print JSON with --once"),
        ],
    ),
    (
        "doctor",
        &[
            ("ID", "Explain a finding, such as CL004"),
            ("only", "Only these findings"),
            ("severity", "At least info, warning, problem"),
            ("watch", "Watch traffic for this time"),
            ("no-watch", "Do not watch traffic"),
            ("record", "Write what was seen to a folder"),
            ("root", "Look at such a folder"),
            ("pid", "Limits of this process"),
            ("lanes", "Lanes, if not as the machine says"),
            ("json", "Print JSON"),
        ],
    ),
    (
        "trial",
        &[
            ("SUBJECT", "Knob or setting to try"),
            ("COMMAND", "Your own measure: prints a number"),
            ("arms", "Its values, the baseline first"),
            ("a", "Command instead of a value"),
            ("b", "The same for the other arm"),
            ("measure", "What counts"),
            ("guard", "What may not become worse"),
            ("for", "Time of the trial"),
            ("find", "Smallest change to be found"),
            ("keep-winner", "Leave the better one in force"),
            ("html", "Write a page"),
            ("json", "Print JSON"),
        ],
    ),
    (
        "demo",
        &[
            ("quick", "A shorter one"),
            ("html", "Where the page is written"),
            ("no-html", "Write no page"),
            ("seed", "Seed of what is drawn"),
            ("json", "Print JSON"),
        ],
    ),
    ("undo", &[("dry-run", "Say what would be restored"), ("json", "Print JSON")]),
    (
        "knob set",
        &[
            ("KNOB", "Its name, such as relay.engine"),
            ("VALUE", "The new value"),
            ("pid", "Only of this process"),
            ("name", "Only of the process of this name"),
            ("all", "In every process that has it"),
            ("if", "Only if it is this now"),
            ("for", "For this time"),
            ("force", "Also while somebody holds it"),
            ("json", "Print JSON"),
        ],
    ),
    ("completions", &[("SHELL", "bash, fish, zsh and others")]),
    (
        "trial combine",
        &[("FILE", "Records of trials"), ("html", "Write a page"), ("json", "Print JSON")],
    ),
];

/// The examples that a page has room for.
const EXAMPLES: usize = 4;

/// The same command, whose help has one screen.
pub(crate) fn short(command: Command) -> Command {
    shorten(command, "")
}

fn shorten(command: Command, path: &str) -> Command {
    let command = command.mut_subcommands(|subcommand| {
        let path = format!("{path} {}", subcommand.get_name());
        shorten(subcommand, path.trim())
    });
    let Some((_, said)) = PAGES.iter().find(|(of, _)| *of == path) else { return command };
    let long = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    command
        .mut_args(|arg| shown(arg, said))
        .long_about(about)
        .after_help(after(&long, path))
        .after_long_help(None::<&str>)
}

/// An argument with its short text, or hidden.
fn shown(arg: Arg, said: &[(&'static str, &'static str)]) -> Arg {
    let name = match arg.is_positional() {
        true => arg.get_id().as_str().to_uppercase(),
        false => arg.get_long().unwrap_or_default().to_owned(),
    };
    let value = |arg: &Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        names.first().map(ToString::to_string)
    };
    let is_it = |given: &str| {
        given == name || (arg.is_positional() && value(&arg).as_deref() == Some(given))
    };
    match said.iter().find(|(given, _)| is_it(given)) {
        Some((_, text)) => arg
            .help(*text)
            .long_help(None::<&str>)
            .help_heading(None::<&str>)
            .hide_possible_values(true)
            .hide_default_value(true),
        None => {
            let own = ["help", "help_all"].contains(&arg.get_id().as_str());
            arg.hide(!own)
        }
    }
}

/// The first examples, and where all is.
fn after(long: &str, path: &str) -> String {
    let examples = long.split_once("Examples:\n").map_or("", |(_, examples)| examples);
    let examples = examples.lines().filter(|line| line.starts_with("  cachelane "));
    let fit = examples.filter(|line| line.chars().count() <= WIDTH);
    let examples: Vec<&str> = fit.take(EXAMPLES).collect();
    let page = path.replace(' ', "-");
    let all = format!("All options: --help-all, or man cachelane-{page}");
    match examples.is_empty() {
        true => all,
        false => format!("Examples:\n{}\n\n{all}", examples.join("\n")),
    }
}

/// Columns of a terminal.
const WIDTH: usize = 80;

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    /// All commands with their paths.
    fn all(command: &Command, path: &str) -> Vec<(String, Command)> {
        let below = command.get_subcommands().filter(|below| below.get_name() != "help");
        let below = below.flat_map(|below| {
            let path = format!("{path} {}", below.get_name());
            all(below, path.trim())
        });
        std::iter::once((path.to_owned(), command.clone())).chain(below).collect()
    }

    #[test]
    fn help_of_each_command_fits_its_first_screen() {
        const LINES: usize = 24;
        let mut command = short(Cli::command());
        command.build();
        for (path, command) in all(&command, "") {
            // A list of commands is as long as it is.
            if command.has_subcommands() && !PAGES.iter().any(|(of, _)| *of == path) {
                continue;
            }
            for text in [
                command.clone().term_width(WIDTH).render_help().to_string(),
                command.clone().term_width(WIDTH).render_long_help().to_string(),
            ] {
                let lines = text.lines().count();
                assert!(lines <= LINES, "{path}: {lines} lines:\n{text}");
                assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{path}:\n{text}");
            }
        }
    }

    #[test]
    fn what_is_said_of_options_is_said_of_options_that_there_are() {
        let mut command = short(Cli::command());
        command.build();
        for (path, said) in PAGES {
            let found = all(&command, "").into_iter().find(|(of, _)| of == path);
            let (_, command) = found.unwrap_or_else(|| panic!("no command {path}"));
            let text = command.term_width(WIDTH).render_help().to_string();
            for (name, words) in *said {
                assert!(text.contains(words), "{path}: nothing is called {name}:\n{text}");
            }
            let options = said.iter().filter(|(name, _)| name.chars().all(|c| !c.is_uppercase()));
            assert!(options.count() <= 10, "{path}");
        }
    }
}

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
            ("filter", "Only what tcpdump would show"),
            ("check", "Look for losses and their like"),
            ("queues", "Queues of the device"),
            ("cpus", "CPUs to work on"),
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
            ("filter", "Only what tcpdump would show"),
            ("quota", "Most loans of a borrower"),
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
            ("filter", "Only what tcpdump would show"),
            ("worker", "So many workers that read"),
            ("mirror", "Get every packet"),
            ("group", "Share with this group alone"),
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
            ("all", "In every process that has it"),
            ("if", "Only if it is this now"),
            ("for", "For this time"),
            ("force", "Also while somebody holds it"),
            ("json", "Print JSON"),
        ],
    ),
    (
        "bench relay",
        &[
            ("only", "Only these parts"),
            ("rounds", "How often each case is measured"),
            ("window", "Length of one measurement"),
            ("seed", "Seed of the order of cases"),
            ("html", "Write a page"),
            ("json", "Print JSON"),
            ("memory-time", "Time of the memory part"),
            ("idle", "Connections of the idle part"),
            ("congestion-control", "TCP congestion control"),
        ],
    ),
    ("completions", &[("SHELL", "bash, fish, zsh and others")]),
    (
        "trial combine",
        &[("FILE", "Records of trials"), ("html", "Write a page"), ("json", "Print JSON")],
    ),
];

/// The most examples of a page.
const EXAMPLES: usize = 4;

/// The same command, whose help has one screen.
pub(crate) fn short(command: Command) -> Command {
    // All commands have them.
    let global = |arg: Arg| {
        if arg.is_global_set() && arg.get_id() != "help_all" { arg.hide(true) } else { arg }
    };
    let all = "All options, exit codes and environment: --help-all, or man cachelane";
    let command = shorten(command, "");
    command.mut_args(global).after_help(all).after_long_help(None::<&str>)
}

/// What is said of a command. All benches have much in common.
fn said_of(path: &str) -> Option<&'static [(&'static str, &'static str)]> {
    let path = if path.starts_with("bench ") { "bench relay" } else { path };
    PAGES.iter().find(|(of, _)| *of == path).map(|(_, said)| *said)
}

fn shorten(command: Command, path: &str) -> Command {
    let command = command.mut_subcommands(|subcommand| {
        let path = format!("{path} {}", subcommand.get_name());
        shorten(subcommand, path.trim())
    });
    let Some(said) = said_of(path) else { return command };
    let long = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let command = command
        .mut_args(|arg| shown(arg, said))
        .mut_subcommands(|below| below.hide(true))
        .long_about(None::<&str>)
        .after_long_help(None::<&str>);
    // With the two options for help, which are not there yet.
    let used = command.clone().term_width(WIDTH).render_help().to_string().lines().count() + 1;
    command.after_help(after(&long, path, LINES.saturating_sub(used)))
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
    let found = said.iter().find(|(given, _)| is_it(given));
    let takes = arg.get_action().takes_values();
    let arg = arg.long_help(None::<&str>).help_heading(None::<&str>);
    let arg = if takes { arg.hide_possible_values(true).hide_default_value(true) } else { arg };
    match found {
        Some((_, text)) => arg.help(*text),
        None => arg.hide(true),
    }
}

/// The first examples, as far as there are lines, and where all is.
fn after(long: &str, path: &str, lines: usize) -> String {
    /// An empty line, the heading, and the last line with one before it.
    const BESIDE: usize = 4;
    let examples = long.split_once("Examples:\n").map_or("", |(_, examples)| examples);
    let examples = examples.lines().filter(|line| line.starts_with("  cachelane "));
    let fit = examples.filter(|line| line.chars().count() <= WIDTH);
    let examples: Vec<&str> = fit.take(EXAMPLES.min(lines.saturating_sub(BESIDE))).collect();
    let page = path.replace(' ', "-");
    let all = format!("All options: --help-all, or man cachelane-{page}");
    match examples.is_empty() {
        true => all,
        false => format!("Examples:\n{}\n\n{all}", examples.join("\n")),
    }
}

/// Columns and lines of a terminal.
const WIDTH: usize = 80;
const LINES: usize = 24;

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

    /// What a command says of itself.
    fn said(path: &str, option: &str) -> String {
        let command = short(Cli::command()).term_width(WIDTH);
        let args = ["cachelane"].into_iter().chain(path.split(' ')).chain([option]);
        let said = command.try_get_matches_from(args.filter(|arg| !arg.is_empty()));
        said.expect_err("help").render().to_string()
    }

    #[test]
    fn help_of_each_command_fits_its_first_screen() {
        for (path, command) in all(&short(Cli::command()), "") {
            for option in ["-h", "--help"] {
                let text = said(&path, option);
                let lines = text.lines().count();
                // A list of commands is as long as it is.
                let is_list = command.has_subcommands() && said_of(&path).is_none();
                assert!(lines <= LINES || is_list, "{path}: {lines} lines:\n{text}");
                assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{path}:\n{text}");
            }
        }
    }

    #[test]
    fn what_is_said_of_options_is_said_of_options_that_there_are() {
        for (path, said_of) in PAGES {
            let text = said(path, "--help");
            for (name, words) in *said_of {
                assert!(text.contains(words), "{path}: nothing is called {name}:\n{text}");
            }
            let is_option = |(name, _): &&(&str, &str)| !name.contains(char::is_uppercase);
            assert!(said_of.iter().filter(is_option).count() <= 10, "{path}");
        }
    }
}

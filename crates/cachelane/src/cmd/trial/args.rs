//! What `cachelane trial` takes on the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use sources::MeasureSpec;
use trial::Better;

use super::combine;
use super::guards::GuardArg;
use crate::args::{Choice, choice, duration};

/// Try a setting on live traffic: set each of its values by turns, and say whether one is better
#[derive(clap::Args, Debug)]
#[command(after_long_help = "\
The subject is one of
  a knob of a running cachelane process, such as relay.engine (cachelane knob list)
  sysctl:NAME, such as sysctl:net.core.skb_defer_max
  file:PATH, one line of text that can be read and written, such as a file of sysfs
  none, with --a and --b: two commands, each of which puts its arm in force

Its values, the arms, are set by turns, in blocks whose order is drawn at random. The first is the \
baseline that the others are compared with. At its end, also by Ctrl-C or an error, the setting is \
as it was before; if the trial is killed, a knob's process restores the knob within twenty seconds, \
and the next cachelane command restores a setting of the host. After two commands, the first one is \
run again.

The first measure decides. Without --measure and without a command it is the CPU time of a byte: \
cpu.busy/net.bytes or, of the relay, cpu.busy/relay.bytes; knobs of other processes than relay and steer \
need one. `--list` shows what can be \
measured; docs/measures.md explains. How to read the outcome is in docs/trial.md.

Exit codes: 0: every arm was found better, worse or no different by the first measure; 5: it cannot \
be told; 1: something failed, or a guard ended the trial.

Examples:
  cachelane trial bridge.fastpath --measure cpu.busy/net.packets@vethweb
  cachelane trial relay.engine --arms copy,splice --for 30m --window 30s
  cachelane trial sysctl:net.core.skb_defer_max --arms 128,0 --find 3%
  cachelane trial steer.llc_affinity --measure cpu.busy/net.bytes@eth0 --guard 'tcp.retransmits <= 1.2'
  cachelane trial relay.cpus --arm 0-3 --arm 8-11 --unit requests/s --better higher -- ./load.sh
  cachelane trial --a 'tc qdisc replace dev eth1 root fq' --b 'tc qdisc replace dev eth1 root pfifo'")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) action: Option<Action>,
    /// What is tried
    #[arg(value_name = "SUBJECT", required_unless_present_any = ["a", "list"],
        conflicts_with_all = ["a", "list"])]
    pub(super) subject: Option<String>,
    /// The knob of the process with this process id
    #[arg(long, value_name = "PID", requires = "subject",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pid: Option<u32>,
    /// The knob of the process of this name, such as 'relay :8080'
    #[arg(long, value_name = "NAME", requires = "subject")]
    pub(super) name: Option<String>,
    /// The values to compare, the baseline first [default: both values of a knob that has two]
    #[arg(
        long,
        value_name = "VALUES",
        value_delimiter = ',',
        requires = "subject",
        conflicts_with = "arm"
    )]
    pub(super) arms: Vec<String>,
    /// One of the values, which may have commas in it; once for each, the baseline first
    #[arg(long, value_name = "VALUE", requires = "subject", allow_hyphen_values = true)]
    pub(super) arm: Vec<String>,
    /// Command line that puts the baseline in force and ends; run before each of its windows
    #[arg(long, value_name = "COMMAND", requires = "b")]
    pub(super) a: Option<String>,
    /// The same for the arm that is compared with it
    #[arg(long, value_name = "COMMAND", requires = "a")]
    pub(super) b: Option<String>,

    /// What to measure, such as cpu.busy/net.packets; may be given several times, the first decides
    #[arg(long = "measure", value_name = "MEASURE", help_heading = "Measures")]
    pub(super) measures: Vec<MeasureSpec>,
    /// What clients ask for, such as net.packets@eth0: measures by second are taken by it instead
    #[arg(long, value_name = "QUANTITY", help_heading = "Measures", requires = "measures")]
    pub(super) load: Option<String>,
    /// Command that measures a window and prints a number, which decides. It finds the window's
    /// length in seconds in CACHELANE_WINDOW
    #[arg(last = true, value_name = "COMMAND", requires = "better")]
    pub(super) command: Vec<OsString>,
    /// Which direction is the good one for the command's number
    #[arg(long, value_name = "DIRECTION", help_heading = "Measures", requires = "command",
        value_parser = choice(DIRECTIONS))]
    pub(super) better: Option<Better>,
    /// Unit of the command's number
    #[arg(long, value_name = "UNIT", help_heading = "Measures", requires = "command")]
    pub(super) unit: Option<String>,
    /// End and restore as soon as a measure is certainly worse than so many times the baseline, after
    /// the first few blocks; `>=` where more is better. May be given several times
    #[arg(long = "guard", value_name = "MEASURE <= RATIO", help_heading = "Measures")]
    pub(super) guards: Vec<GuardArg>,
    /// Do not guard retransmits, drops and the errors of the process whose knob it is
    #[arg(long, help_heading = "Measures")]
    pub(super) no_guards: bool,
    /// List what can be measured on this host
    #[arg(long, help_heading = "Measures")]
    pub(super) list: bool,

    /// How long it may take in all, with the pilot [default: 3m, or as long as --find needs]
    #[arg(long = "for", value_name = "TIME", help_heading = "Plan", value_parser = span)]
    pub(super) time: Option<Duration>,
    /// Effect that is to be found, such as 3%: how long that takes is found out by the pilot
    #[arg(long, value_name = "PERCENT", help_heading = "Plan", value_parser = percent)]
    pub(super) find: Option<f64>,
    /// Number of blocks, each of two windows of every arm [default: as many as the time allows]
    #[arg(long, value_name = "N", help_heading = "Plan", conflicts_with_all = ["time", "find"],
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) blocks: Option<u32>,
    /// Length of a window [default: 1s, less if --for is less than 3m]
    #[arg(long, value_name = "TIME", help_heading = "Plan", value_parser = span)]
    pub(super) window: Option<Duration>,
    /// Time between setting an arm and measuring it [default: 250ms, more where the pilot sees that
    /// effects take longer]
    #[arg(long, value_name = "TIME", help_heading = "Plan", value_parser = span)]
    pub(super) settle: Option<Duration>,
    /// What a new value reaches. at-once: everything that flows; unknown: perhaps only what connects
    /// later [default: as the knob says; unknown for other subjects]
    #[arg(long, value_name = "REACH", help_heading = "Plan", value_parser = choice(REACHES))]
    pub(super) reach: Option<trial::Reach>,
    /// Where the reach is unknown: how long the pilot holds the baseline before and after it has held
    /// each other arm for twice as long. Longer than connections live is best [default: such that the
    /// pilot takes a third of the time]
    #[arg(long, value_name = "TIME", help_heading = "Plan", value_parser = span)]
    pub(super) hold: Option<Duration>,
    /// How far from the baseline still is no difference
    #[arg(long, value_name = "PERCENT", help_heading = "Plan", default_value = "1%",
        value_parser = percent)]
    pub(super) margin: f64,
    /// Confidence of the intervals, from 0.5 to 0.999
    #[arg(long, value_name = "SHARE", help_heading = "Plan", default_value_t = 0.95)]
    pub(super) confidence: f64,
    /// End at the first of four looks that decides
    #[arg(long, help_heading = "Plan")]
    pub(super) early: bool,
    /// Seed of the order: hosts with the same one change their arms in the same order [default:
    /// random]
    #[arg(long, value_name = "N", help_heading = "Plan")]
    pub(super) seed: Option<u64>,

    /// Leave the winner in force if there is one that is worse by no other measure
    #[arg(long, help_heading = "Outcome")]
    pub(super) keep_winner: bool,
    /// Print JSON instead of a table: with all windows, for `cachelane trial combine`
    #[arg(long, help_heading = "Outcome")]
    pub(super) json: bool,
    /// Write an HTML page with plots to this file as well
    #[arg(long, value_name = "FILE", help_heading = "Outcome")]
    pub(super) html: Option<PathBuf>,
    /// Print what would be done, and change nothing
    #[arg(long, help_heading = "Outcome")]
    pub(super) dry_run: bool,
}

/// What else there is to do with trials.
#[derive(clap::Subcommand, Debug)]
pub(super) enum Action {
    Combine(combine::Args),
}

const DIRECTIONS: Choice<Better> = &[("lower", Better::Lower), ("higher", Better::Higher)];

const REACHES: Choice<trial::Reach> =
    &[("at-once", trial::Reach::AtOnce), ("unknown", trial::Reach::Unknown)];

/// Reads a time that a trial can take.
fn span(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(30 * 24 * 3600);
    let time = duration(text)?;
    if time > MOST { Err("too long (expected at most 30days)".into()) } else { Ok(time) }
}

/// Reads a share: `3%`, `0.5 %`.
fn percent(text: &str) -> Result<f64, String> {
    let expected = || format!("expected a share above 0% and below 100%, such as 3%; got {text:?}");
    let number = text.trim().strip_suffix('%').ok_or_else(expected)?;
    let percent: f64 = number.trim_end().parse().map_err(|_| expected())?;
    if percent > 0.0 && percent < 100.0 { Ok(percent / 100.0) } else { Err(expected()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_people_write_them() {
        assert_eq!(percent("3%"), Ok(0.03));
        assert_eq!(percent(" 0.5 % "), Ok(0.005));
        for bad in ["3", "0%", "100%", "-1%", "x%", "nan%", ""] {
            assert!(percent(bad).unwrap_err().contains("such as 3%"), "{bad}");
        }
    }
}

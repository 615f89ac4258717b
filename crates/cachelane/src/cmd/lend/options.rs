//! What `cachelane lend` takes on the command line beside what the AF_XDP tools take.

use std::path::PathBuf;
use std::time::Duration;

use frames::Accounting;
use lend::LenderOptions;

use super::pace::Pace;
use crate::args::{Choice, choice, duration, name_of, of_name};
use crate::exit::usage;
use crate::packets::options::SocketArgs;

/// Who may borrow, and how much.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Borrowers")]
pub(super) struct LendArgs {
    /// Path of the Unix socket that borrowers connect to
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Permissions of the socket's file, in octal, which say who may connect
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = mode)]
    socket_mode: u32,
    /// Group of the socket's file: a name or a number [default: this process's group]
    #[arg(long, value_name = "GROUP", value_parser = group)]
    socket_group: Option<u32>,
    /// Most loans (frames not given back yet) that a borrower may have in each queue, from 1 to
    /// 65536
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    quota: u32,
    /// Most borrowers at a time, from 1 to 64 [default: as many as there are frames for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    borrowers: Option<u8>,
    /// Frames that are never lent, so that there are always some to receive into [default: for each
    /// queue, --ring and 1024 more]
    #[arg(long, value_name = "N")]
    reserve: Option<u32>,
    /// Most that one user may have of all borrowers, loans and joins in a second, in percent; of
    /// mirrors (borrowers that get every packet) and of groups, a user may have two together. Root and
    /// this process's user have no limit
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    user_share: u32,
    /// Copy packets into a memory area of each borrower's own, so that none can read what others
    /// get, and allow mirrors and groups only to root and this process's user. Without it, borrowers can
    /// read all of this lender's packets for as long as they keep its memory mapped
    #[arg(long)]
    private: bool,
    /// Most time that a packet waits for others that come soon, so that one wake-up serves several;
    /// less where many come or --ring or --quota is small, and none where packets are few. 0s lends
    /// each at once, which costs more CPU time
    #[arg(long, value_name = "TIME", default_value = "8ms", value_parser = duration)]
    delay: Duration,
    /// What time a packet has for its borrowers: batch (when this command took it from its queue, one time
    /// for a batch) or software (when the kernel received it: its time is written in front of it, where the
    /// device has room for that)
    #[arg(long, value_name = "KIND", default_value = "batch", value_parser = choice(TIMESTAMPS))]
    timestamps: Timestamps,
    /// Time for which a borrower that shares flows may have its quota and return nothing, while packets for
    /// it are dropped; then it is disconnected, and others get its flows. 0s leaves it alone for ever
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    evict_after: Duration,
    /// How loans are accounted for: off (by a counter for each frame) or on (by a ledger for each
    /// borrower); can be changed while it runs: knob lend.autorelease
    #[arg(long, value_name = "off|on", default_value = "off", value_parser = |s: &str| of_name(ACCOUNTING, s))]
    autorelease: Accounting,
}

/// The values of the knob.
pub(super) const ACCOUNTING: Choice<Accounting> =
    &[("off", Accounting::Counters), ("on", Accounting::Ledgers)];

/// What time a packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timestamps {
    Batch,
    Software,
}

const TIMESTAMPS: Choice<Timestamps> =
    &[("batch", Timestamps::Batch), ("software", Timestamps::Software)];

/// More than that can never be.
const BORROWERS: u8 = 64;

/// Borrowers for which a user's share has room if nobody says how many there are: four workers and
/// a mirror.
const OF_A_USER: u32 = 5;

impl LendArgs {
    /// The frames that each queue needs: as many as the borrowers can have that were asked for.
    pub(super) fn frames(&self, queues: u32, sockets: &SocketArgs) -> u32 {
        /// Where no number of borrowers is given.
        const FEW: u32 = 4;
        /// So few cost nobody anything.
        const LEAST: u32 = 8192;
        let borrowers = match self.borrowers {
            Some(borrowers) => borrowers.into(),
            None if self.is_for_others() => (OF_A_USER * 100).div_ceil(self.user_share.max(50)),
            None => FEW,
        };
        let lent = self.quota.saturating_mul(borrowers);
        let reserve = self.reserve.map_or(reserve(sockets), |all| all.div_ceil(queues.max(1)));
        lent.saturating_add(reserve).max(LEAST)
    }

    /// Whether others than root and this process's user may connect, who get a share only.
    fn is_for_others(&self) -> bool {
        self.socket_mode & 0o022 != 0
    }

    /// How many borrowers with the whole quota have room at a time, and what makes more.
    pub(super) fn room(&self, frames: u32, queues: u32, options: &LenderOptions) -> String {
        let quota = self.quota;
        let left = frames.saturating_sub(options.reserve);
        let room = (left / quota.saturating_mul(queues).max(1)) as usize;
        match room < options.borrowers {
            true => format!(
                "to up to {room} borrowers with a quota of {quota} (--borrowers N makes room for \
                 N, as --frames does)"
            ),
            false => format!("to up to {} borrowers with a quota of {quota}", options.borrowers),
        }
    }

    /// Whether each packet has a time of its own.
    pub(super) fn stamps(&self) -> bool {
        self.timestamps == Timestamps::Software
    }

    /// How a thread rests between packets.
    pub(super) fn pace(&self, sockets: &SocketArgs) -> Pace {
        Pace::new(self.delay, sockets.ring.min(self.quota))
    }

    /// For a pool of so many frames that these queues share.
    pub(super) fn options(
        &self,
        frames: u32,
        queues: u32,
        sockets: &SocketArgs,
    ) -> anyhow::Result<LenderOptions> {
        let reserve = self.reserve.unwrap_or(reserve(sockets).saturating_mul(queues));
        let left = frames.saturating_sub(reserve);
        let one = self.quota.saturating_mul(queues);
        if left < one {
            return Err(usage(format!(
                "{frames} frames less a reserve of {reserve} are too few for one borrower: a quota \
                 of {} in {queues} queue(s) needs {one} (more --frames, or a smaller --quota)",
                self.quota
            )));
        }
        Ok(LenderOptions::new(&self.socket)
            .mode(self.socket_mode)
            .group(self.socket_group)
            .borrowers(usize::from(self.borrowers.unwrap_or(BORROWERS)))
            .quota(self.quota)
            .reserve(reserve)
            .accounting(self.autorelease)
            .user_share(self.user_share)
            .private(self.private)
            .evict_after(Some(self.evict_after).filter(|after| !after.is_zero())))
    }
}

/// The frames of a queue that are never lent, if nobody says how many.
fn reserve(sockets: &SocketArgs) -> u32 {
    sockets.ring.saturating_add(1024)
}

/// What a dry run says of the socket.
pub(super) fn would_listen(options: &LenderOptions) -> String {
    let group = options.group.map_or_else(String::new, |group| format!(", group {group}"));
    format!(
        "would listen at {} (mode {:04o}{group}) for up to {} borrowers, each with at most {} loans \
         in each queue, and {} % of all for one user, who read {}; {} frames are never lent; \
         autorelease {}",
        options.socket.display(),
        options.mode,
        options.borrowers,
        options.quota,
        options.user_share,
        if options.private { "copies of what they get" } else { "everything" },
        options.reserve,
        name_of(ACCOUNTING, options.accounting)
    )
}

fn mode(s: &str) -> Result<u32, String> {
    let digits = s.strip_prefix("0o").unwrap_or(s);
    let parsed = u32::from_str_radix(digits, 8).ok().filter(|&mode| mode <= 0o777);
    parsed.ok_or_else(|| format!("'{s}' is not a mode (expected octal such as 0660)"))
}

/// A group's number, or its name in /etc/group.
fn group(s: &str) -> Result<u32, String> {
    if let Ok(number) = s.parse() {
        return Ok(number);
    }
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    let number = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(s)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    number.ok_or_else(|| format!("'{s}' is no group of /etc/group (expected a name or a number)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_others_may_connect_a_users_share_has_room_for_four_workers_and_a_mirror() {
        #[derive(clap::Parser)]
        struct Tool {
            #[command(flatten)]
            lend: LendArgs,
            #[command(flatten)]
            sockets: SocketArgs,
        }
        let frames = |more: &str| {
            let given = ["lend", "--socket", "x"].into_iter().chain(more.split_whitespace());
            let Tool { lend, sockets } = clap::Parser::try_parse_from(given).expect(more);
            let frames = lend.frames(1, &sockets);
            let left = u64::from(frames - lend.options(frames, 1, &sockets).unwrap().reserve);
            (frames, left * u64::from(lend.user_share) / 100 / u64::from(lend.quota))
        };
        assert_eq!(frames("--socket-mode 0660"), (13_312, 5));
        for more in ["--user-share 75", "--user-share 100", "--quota 8000", "--ring 4096"] {
            for mode in ["0660", "0666", "0620"] {
                let (_, room) = frames(&format!("--socket-mode {mode} {more}"));
                assert!(room >= 5, "{mode} {more}: {room}");
            }
        }
        // Nobody has a share only, or it was said how many borrowers there are.
        for more in ["", "--socket-mode 0644", "--socket-mode 0660 --borrowers 5"] {
            assert_eq!(frames(more).0, 8192, "{more}");
        }
        assert_eq!(frames("--quota 8192").0, 35_840);
    }

    #[test]
    fn modes_and_groups_are_read_as_other_programs_take_them() {
        for (given, expected) in [("0660", 0o660), ("600", 0o600), ("0o777", 0o777)] {
            assert_eq!(mode(given), Ok(expected));
        }
        for given in ["", "8", "01000", "-1", "rw"] {
            assert!(mode(given).unwrap_err().contains(&format!("'{given}'")));
        }
        assert_eq!((group("7"), group("root")), (Ok(7), Ok(0)));
        assert!(group("no-such-group").unwrap_err().contains("'no-such-group'"));
    }
}

//! The programs at the tracepoints: those that watch, those that do nothing, or none.

use std::io;

use anyhow::Context as _;
use bpf::{Link, Object, Program, RunTime};
use doctor::Watching;
use lanes::LaneMap;

use super::events::Kind;
use crate::bench::experiment::Absent;

include!(concat!(env!("OUT_DIR"), "/empty.rs"));

/// Which programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    Nothing,
    Empty,
    Watching,
}

pub(super) const ARMS: [(Arm, &str); 3] =
    [(Arm::Nothing, "nothing"), (Arm::Empty, "empty programs"), (Arm::Watching, "watching")];

/// Events of a kind with programs at them, each with its name.
pub(super) type Case = ((Kind, &'static str), (Arm, &'static str));

/// They run for as long as this is there.
#[derive(Debug)]
pub(super) enum Programs {
    Nothing,
    Empty(Empty),
    Watching(Watching),
}

/// Programs that do nothing: at receives, and two at frees.
#[derive(Debug)]
pub(super) struct Empty {
    programs: [Program; 3],
    _links: Vec<Link>,
}

impl Programs {
    /// Loads and attaches them.
    ///
    /// # Errors
    /// [`Absent`] where the kernel does not let this user watch.
    pub(super) fn attach(arm: Arm) -> anyhow::Result<Programs> {
        Ok(match arm {
            Arm::Nothing => Programs::Nothing,
            Arm::Empty => Programs::Empty(Empty::attach().context("the empty programs")?),
            Arm::Watching => {
                let watching = Watching::start(&LaneMap::detect()?);
                Programs::Watching(watching.map_err(|error| Absent(error.to_string()))?)
            }
        })
    }

    /// What those at receives have cost so far, and those at frees, while the kernel's statistics
    /// were on.
    pub(super) fn run_times(&self) -> anyhow::Result<[RunTime; 2]> {
        match self {
            Programs::Nothing => Ok(Default::default()),
            Programs::Empty(Empty { programs: [received, consumed, dropped], .. }) => {
                Ok([received.run_time()?, consumed.run_time()? + dropped.run_time()?])
            }
            Programs::Watching(watching) => Ok(watching.run_times()?),
        }
    }
}

impl Empty {
    fn attach() -> io::Result<Empty> {
        let object = Object::load(OBJECT)?;
        let programs = [
            object.program("empty_received")?,
            object.program("empty_consumed")?,
            object.program("empty_dropped")?,
        ];
        let places = [c"sock_recv_length", c"consume_skb", c"kfree_skb"];
        let attach = programs.iter().zip(places).map(|(program, at)| program.attach_tracepoint(at));
        let links = attach.collect::<io::Result<_>>()?;
        Ok(Empty { programs, _links: links })
    }
}

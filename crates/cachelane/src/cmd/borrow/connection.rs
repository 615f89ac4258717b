//! A connection to the lender, which is made anew after its end if that is wanted.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use lend::{Borrower, BorrowerOptions, ErrorKind, Wait};

use super::Args;

/// How soon it is tried again.
const PAUSE: Duration = Duration::from_millis(100);

/// What a worker borrows by.
pub(super) struct Connection {
    socket: PathBuf,
    reconnects: bool,
    options: BorrowerOptions,
    /// None once it is over, and none was made anew.
    borrower: Option<Borrower>,
    /// Packets that were dropped at connections before this one.
    dropped_before: u64,
}

/// Why waiting ended, where nothing failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rested {
    /// There may be something to receive.
    Ready,
    /// The lender has ended, and nothing will come.
    Closed,
    /// The lender is gone, and another connection is wanted: [`Connection::renew`].
    Lost,
}

impl Connection {
    /// Connects a worker, and waits for a lender if that is wanted: the first does. Where one waited for room
    /// that others have, those before it would lose their packets meanwhile.
    pub(super) fn open(args: &Args, number: u16) -> lend::Result<Self> {
        let name = match (args.name.as_deref(), args.worker) {
            (Some(name), Some(2..)) => format!("{name}-{number}"),
            (None, Some(_)) => format!("worker-{number}"),
            (name, _) => name.unwrap_or(args.task()).into(),
        };
        let options = BorrowerOptions::default()
            .name(name)
            .quota(args.quota.unwrap_or(0))
            .mirror(args.mirror)
            .group(args.group.unwrap_or(0));
        let borrower = match Borrower::connect(&args.socket, &options) {
            Err(error) if number == 0 && args.reconnect && error.kind().may_pass() => {
                tracing::warn!("{}: {error}; waiting for it", options.name);
                connect(&args.socket, &options, || false)?.expect("it goes on until there is one")
            }
            done => done?,
        };
        let (socket, reconnects) = (args.socket.clone(), args.reconnect);
        Ok(Self { socket, reconnects, options, borrower: Some(borrower), dropped_before: 0 })
    }

    /// Packets that were dropped because we had our quota.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped_before + self.borrower.as_ref().map_or(0, Borrower::dropped)
    }

    pub(super) fn borrower(&mut self) -> &mut Borrower {
        self.borrower.as_mut().expect("nothing is asked of one that is over")
    }

    /// Waits for something to receive.
    pub(super) fn wait(&mut self, timeout: Duration) -> anyhow::Result<Rested> {
        let why = match self.borrower().wait(Some(timeout)) {
            Ok(Wait::Closed) if !self.reconnects => return Ok(Rested::Closed),
            Ok(Wait::Closed) => "the lender has ended".to_owned(),
            Ok(Wait::Ready | Wait::TimedOut) => return Ok(Rested::Ready),
            Err(error) if self.reconnects && error.kind().may_pass() => error.to_string(),
            Err(error) => {
                return Err(error).with_context(|| self.socket.display().to_string());
            }
        };
        tracing::warn!("{}: {why}; connecting again", self.options.name);
        Ok(Rested::Lost)
    }

    /// Connects anew, and goes on trying until it `is_over`; whether it is connected.
    pub(super) fn renew(&mut self, is_over: impl FnMut() -> bool) -> anyhow::Result<bool> {
        self.dropped_before = self.dropped();
        // First: its memory counts for its user's share for as long as it is mapped.
        self.borrower = None;
        self.borrower = connect(&self.socket, &self.options, is_over)?;
        if self.borrower.is_some() {
            tracing::info!("{}: connected again", self.options.name);
        }
        Ok(self.borrower.is_some())
    }
}

/// Tries until there is a lender that has room, or it is over.
fn connect(
    socket: &Path,
    options: &BorrowerOptions,
    mut is_over: impl FnMut() -> bool,
) -> lend::Result<Option<Borrower>> {
    /// A lender that starts lets others in once its socket has its mode and group.
    const DENIALS: u32 = 20;
    let mut denied = 0;
    while !is_over() {
        match Borrower::connect(socket, options) {
            Ok(borrower) => return Ok(Some(borrower)),
            Err(error) if error.kind().may_pass() => {}
            Err(error) if error.kind() == ErrorKind::NotPermitted && denied < DENIALS => {
                denied += 1
            }
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE);
    }
    Ok(None)
}

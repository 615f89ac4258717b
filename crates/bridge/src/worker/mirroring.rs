//! The worker's dealings with stations: mirroring the kernel's table.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use libbpf_rs::RingBuffer;

use super::Worker;
use super::looking::{LOOK, cpu_time, later};
use super::unsettled::Unsettled;
use crate::error::Context as _;
use crate::mirror::{Mirror, StationMap};
use crate::program::{Program, Station};
use crate::state::Key;
use crate::{Change, ErrorKind, Result};

/// The packet path's map of stations.
pub(super) struct Writer<'a> {
    program: &'a Program,
    /// What is written has yet to be settled.
    written: &'a mut Unsettled,
}

impl StationMap for Writer<'_> {
    fn set(&mut self, key: Key, station: Station) -> Result<bool> {
        let written = self.program.set_station(key, station)?;
        if written {
            self.written.add(key, station.unsettled);
        }
        Ok(written)
    }

    fn remove(&mut self, key: Key) -> Result<()> {
        self.program.remove_station(key)
    }
}

impl Worker {
    /// Takes in which stations were seen on another port.
    pub(super) fn take_moves(
        &mut self,
        ring: &RingBuffer<'_>,
        seen: &RefCell<Vec<Key>>,
    ) -> Result<()> {
        ring.consume().map_err(bpf::io_error).context("reading moved stations")?;
        for key in seen.take() {
            if let Some(count) = self.shared.program.unsettled(key)? {
                self.unsettled.add(key, count);
            }
        }
        Ok(())
    }

    /// Mirrors the changes of the forwarding table, and leaves to the kernel path what else has
    /// changed.
    pub(super) fn drain(&mut self) -> Result<()> {
        let mut changes = std::mem::take(&mut self.changes);
        let drained = self.watch.drain(&mut changes);
        let applied = self.apply(changes.drain(..));
        self.changes = changes;
        applied?;
        self.heed(drained).map(drop)
    }

    /// Leaves to the kernel path what notifications said to have changed. Returns whether none were
    /// lost.
    fn heed(&mut self, drained: Result<bool>) -> Result<bool> {
        match drained {
            Err(error) if error.kind() == ErrorKind::Overrun => {
                tracing::warn!("{error}; reading the whole forwarding table again");
                self.shared.gauges.overruns.fetch_add(1, Relaxed);
                self.distrust().map(|()| false)
            }
            Ok(true) => self.close().map(|()| true),
            other => other.map(|_| true),
        }
    }

    pub(super) fn apply(&mut self, mut changes: impl Iterator<Item = Change>) -> Result<()> {
        self.mirror(|mirror, table| changes.try_for_each(|change| mirror.apply(change, table)))
    }

    /// Changes the mirror, and the packet path's table with it.
    pub(super) fn mirror(
        &mut self,
        change: impl FnOnce(&mut Mirror, &mut Writer<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut table = Writer { program: &self.shared.program, written: &mut self.unsettled };
        change(&mut self.mirror, &mut table)
    }

    /// Leaves everything to the kernel path until the mirror is rebuilt.
    pub(super) fn distrust(&mut self) -> Result<()> {
        self.stale = true;
        self.shared.change(|gate| gate.trusted = false)
    }

    pub(super) fn rebuild_if_stale(&mut self) -> Result<()> {
        if self.stale { self.rebuild() } else { Ok(()) }
    }

    /// Mirrors the kernel's whole table, and trusts the mirror from then on; if notifications are
    /// lost on the way, that is for the next look.
    pub(super) fn rebuild(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.distrust()?;
        let complete = self.read_table()?;
        if complete {
            let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.shared.gauges.mirror_nanos.store(nanos, Relaxed);
            self.stale = false;
            self.shared.change(|gate| gate.trusted = true)?;
        }
        Ok(())
    }

    /// Makes the mirror equal to the kernel's whole table. Returns whether it is: not where
    /// notifications were lost on the way.
    pub(super) fn read_table(&mut self) -> Result<bool> {
        let begin = cpu_time();
        self.next_reading = None;
        let entries = self.reader.stations(self.shared.bridge)?;
        self.mirror(|mirror, table| mirror.rebuild(&entries, table))?;
        // What was announced meanwhile may be older than what was read, or newer: applied to its
        // end, in order, it comes to what the kernel has.
        let mut changes = Vec::new();
        let drained = self.watch.drain(&mut changes);
        if changes.iter().any(|change| matches!(change, Change::Removed(_))) {
            // It may have hidden another entry, which takes the kernel path until it is read.
            self.next_reading = Some(later(begin, LOOK));
        }
        self.apply(changes.into_iter())?;
        self.publish();
        // Reading a table of any length is no look at the host.
        self.at_work = Instant::now();
        self.heed(drained)
    }

    pub(super) fn publish(&self) {
        let gauges = &self.shared.gauges;
        gauges.stations.store(self.mirror.mapped.into(), Relaxed);
        let left_out = self.mirror.left_out.len() as u64;
        if gauges.left_out.swap(left_out, Relaxed) == 0 && left_out > 0 {
            tracing::warn!("no room for {left_out} stations: they take the kernel path");
        }
    }
}

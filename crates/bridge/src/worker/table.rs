//! The packet path's table as the worker writes it, and what it hears from there.

use std::cell::RefCell;
use std::io;

use libbpf_rs::{RingBuffer, RingBufferBuilder};

use super::unsettled::Unsettled;
use crate::mirror::StationMap;
use crate::program::{self, Program, Station};
use crate::state::Mac;
use crate::{Error, Result};

/// The packet path's map of stations.
pub(super) struct Writer<'a> {
    pub(super) program: &'a Program,
    /// What is written has yet to be settled.
    pub(super) written: &'a mut Unsettled,
}

impl StationMap for Writer<'_> {
    type Error = io::Error;

    fn set(&mut self, mac: Mac, station: Station) -> io::Result<bool> {
        let written = self.program.set_station(mac, station)?;
        if written {
            self.written.add(mac, station.unsettled);
        }
        Ok(written)
    }

    fn remove(&mut self, mac: Mac) -> io::Result<()> {
        self.program.remove_station(mac)
    }
}

/// A reader of the ring of moved stations that puts them into `seen`.
pub(super) fn ring<'a>(
    program: &'a Program,
    seen: &'a RefCell<Vec<Mac>>,
) -> Result<RingBuffer<'a>> {
    let mut builder = RingBufferBuilder::new();
    let take = |key: &[u8]| {
        seen.borrow_mut().extend(program::mac_of(key));
        0
    };
    builder
        .add(program.moved().handle(), take)
        .map_err(|e| Error::io("the ring of moved stations", bpf::io_error(e)))?;
    builder.build().map_err(|e| Error::io("the ring of moved stations", bpf::io_error(e)))
}

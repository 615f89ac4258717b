//! What a borrower gets: its memories, its channels, its welcome.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use rustix::fs::fstat;
use zerocopy::FromZeros as _;

use super::admission::{Refusal, Terms};
use super::control::{Control, Tenancy, Tenant, Why};
use super::roster::Entry;
use super::users::{Charge, Peer};
use crate::alarm::{Alarm, attend};
use crate::distributor::{Channel, Command, Copies, Party, Report};
use crate::layout::{HELLO_MIRROR, Hello, Layout, MAGIC, Status, VERSIONS, Welcome};
use crate::memory::{Memory, Witness};
use crate::reaper::Reaped;
use crate::tally::ChannelTally;
use crate::wire::{receive, send};

/// What is made for a borrower.
struct Outfit {
    layout: Layout,
    out: Arc<Memory>,
    party: Arc<Party>,
    /// What it gets beside the area: out, back.
    descriptors: [OwnedFd; 2],
    witnesses: Vec<Witness>,
    /// An area of its own, if it gets one.
    own_area: Option<(Arc<Memory>, OwnedFd)>,
    area_len: u64,
}

impl Control {
    /// Makes a borrower of who is at the other end.
    pub(super) fn admit(&mut self, socket: Reaped<OwnedFd>, peer: Peer, terms: Terms) {
        let outfit = match self.outfit(&terms) {
            Ok(outfit) => outfit,
            Err(e) => {
                let reason = format!("the lender cannot: {e}");
                self.count(|refused| &mut refused.failed);
                return self.tell(socket, &Refusal::new(Status::Busy, reason));
            }
        };
        let welcome = self.welcome(&terms, &outfit);
        let channels: Vec<Arc<ChannelTally>> =
            self.distributors.iter().map(|_| Arc::default()).collect();
        self.join(&terms, &outfit, &channels);
        let Outfit { party, descriptors, witnesses, own_area, .. } = outfit;
        let Terms { slot, quota, mirror, name, .. } = terms;
        let (loans, since) = (u64::from(quota) * channels.len() as u64, Instant::now());
        let Peer { pid, uid } = peer;
        let alarm = Arc::clone(&party.alarm);
        let entry = Entry { name, pid, uid, mirror, quota, since, party, channels };
        let mut state = self.roster.state();
        state.joined += 1;
        state.members.insert(slot, entry);
        drop(state);
        // After all this: who is welcome is known, and is lent to with the distributors' next turn.
        self.members += 1;
        let (socket, member) = (Arc::new(socket), self.members);
        let (here, bell) = (Arc::clone(&socket), Arc::clone(&alarm));
        let state = Tenancy::Here { socket: here, alarm: bell, is_welcomed: false };
        let charge = Charge { uid, loans, memories: self.reaper.keep(witnesses) };
        self.tenants.insert(slot, Tenant { charge, member, state });
        let (area, report) = (Arc::clone(&self.area), self.report.clone());
        let begin = move |socket: &Reaped<OwnedFd>| {
            let [out, back] = &descriptors;
            take_hello(socket);
            let area = own_area.as_ref().map_or(area.as_fd(), |(_, fd)| fd.as_fd());
            let descriptors = [area, out.as_fd(), back.as_fd()];
            let is_there = send(socket, &welcome, &descriptors).is_ok();
            report.send(Report::Welcomed { slot, member, is_there });
            is_there
        };
        let report = self.report.clone();
        let offends = move || {
            report.send(Report::Slow { slot, member });
        };
        if attend(alarm, socket, begin, offends).is_err() {
            self.count(|refused| &mut refused.failed);
            self.part(slot, Why::NeverCame);
        }
    }

    fn outfit(&self, terms: &Terms) -> rustix::io::Result<Outfit> {
        let layout = Layout::new(self.distributors.len() as u32, terms.quota);
        let (out, out_fd) = Memory::ours(c"cachelane-lend-out", layout.out_len())?;
        let (back, back_fd) = Memory::theirs(c"cachelane-lend-back", layout.back_len())?;
        let (out, back) = (out.reaped(&self.reaper), back.reaped(&self.reaper));
        let (out_fd, out_witness) = Witness::of(out_fd)?;
        let (back_fd, back_witness) = Witness::of(back_fd)?;
        let party = Arc::new(Party {
            back: Arc::new(back),
            alarm: Arc::new(Alarm::new()?),
            offences: AtomicU32::new(0),
            forgiven: self.options.offences,
        });
        let mut witnesses = vec![out_witness, back_witness];
        let own_area = match self.options.private {
            true => Some(self.own_area(layout.channels, terms.quota, &mut witnesses)?),
            false => None,
        };
        // What is mapped may be more than the frames: huge pages round it up.
        let area = own_area.as_ref().map_or(self.area.as_fd(), |(_, fd)| fd.as_fd());
        let area_len = fstat(area)?.st_size as u64;
        let descriptors = [out_fd, back_fd];
        let out = Arc::new(out);
        Ok(Outfit { layout, out, party, descriptors, witnesses, own_area, area_len })
    }

    /// An area for one borrower alone.
    fn own_area(
        &self,
        channels: u32,
        quota: u32,
        witnesses: &mut Vec<Witness>,
    ) -> rustix::io::Result<(Arc<Memory>, OwnedFd)> {
        let len = Copies::area_len(self.pool.area().frame_size(), quota, channels)?;
        let (area, fd) = Memory::ours(c"cachelane-lend-area", len)?;
        let (fd, witness) = Witness::of(fd)?;
        witnesses.push(witness);
        Ok((Arc::new(area.reaped(&self.reaper)), fd))
    }

    fn join(&self, terms: &Terms, outfit: &Outfit, tallies: &[Arc<ChannelTally>]) {
        let &Terms { slot, quota, mirror, .. } = terms;
        for (index, (post, tally)) in (0..).zip(self.distributors.iter().zip(tallies)) {
            let Some(post) = post else { continue };
            let (party, tally) = (Arc::clone(&outfit.party), Arc::clone(tally));
            let copies = outfit.own_area.as_ref().map(|(area, _)| {
                Copies::new(Arc::clone(area), self.pool.area().frame_size(), quota, index)
            });
            let channel = Channel::new(&outfit.out, outfit.layout, index, party, tally);
            let channel = channel.with_copies(copies);
            let channel = Box::new(channel);
            // It fails only for one that was dropped, which is about to be known.
            post.send(Command::Join { slot, quota, mirror, channel });
        }
    }

    fn welcome(&self, terms: &Terms, outfit: &Outfit) -> Welcome {
        let (area, layout) = (self.pool.area(), outfit.layout);
        Welcome {
            version: terms.version,
            status: Status::Welcome as u16,
            frame_size: area.frame_size(),
            frames: match outfit.own_area {
                Some(_) => terms.quota * layout.channels,
                None => area.frames(),
            },
            area_len: outfit.area_len,
            quota: terms.quota,
            slots: layout.slots,
            channels: layout.channels,
            flags: if terms.mirror { HELLO_MIRROR } else { 0 },
            out_len: layout.out_len() as u64,
            back_len: layout.back_len() as u64,
            ..blank()
        }
    }

    /// Says why not. Who does not listen misses it.
    pub(super) fn tell(&self, socket: Reaped<OwnedFd>, refusal: &Refusal) {
        let mut welcome = Welcome { status: refusal.status as u16, ..blank() };
        let text = refusal.reason.as_bytes();
        // One byte stays 0, for those who read it as a C string.
        let mut end = text.len().min(welcome.reason.len() - 1);
        while !refusal.reason.is_char_boundary(end) {
            end -= 1;
        }
        welcome.reason[..end].copy_from_slice(&text[..end]);
        self.reaper.run(move || {
            take_hello(&socket);
            let _ = send(&socket, &welcome, &[]);
        });
    }
}

/// Takes what was peeked, if anything was: who is told something without is told of a reset first.
fn take_hello(socket: &Reaped<OwnedFd>) {
    let _ = receive::<Hello>(socket);
}

/// A message that says which versions we speak, and nothing else.
fn blank() -> Welcome {
    let (version_min, version_max) = VERSIONS;
    Welcome { magic: MAGIC, version_min, version_max, ..Welcome::new_zeroed() }
}

//! What a borrower gets: its memories, its channels, its welcome.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use zerocopy::FromZeros as _;

use super::admission::{Refusal, Terms};
use super::control::{Control, EVENTS, Tenancy, Tenant};
use super::roster::Entry;
use super::users::{Charge, Peer};
use crate::alarm::{Alarm, attend};
use crate::distributor::{Channel, Command, Copies, Party, Report};
use crate::layout::{HELLO_MIRROR, Hello, Layout, MAGIC, Mapped, Status, VERSIONS, Welcome};
use crate::memory::{Memory, Witness};
use crate::reaper::Reaped;
use crate::tally::ChannelTally;
use crate::wire::{Received, peek, receive, send};

/// How long a borrower has to map what it got.
const MAPPING: Duration = Duration::from_secs(10);

/// What is made for a borrower.
struct Outfit {
    layout: Layout,
    out: Arc<Memory>,
    /// What it writes, as we have it, which is not what it gets.
    back: OwnedFd,
    /// What it gets beside the area: out, back.
    descriptors: [OwnedFd; 2],
    witnesses: Vec<Witness>,
    /// An area of its own, if it gets one.
    own_area: Option<(Arc<Memory>, OwnedFd)>,
    area_len: u64,
}

/// What is kept for a borrower that maps what it got.
#[derive(Debug)]
pub(super) struct Invitation {
    pub(super) terms: Terms,
    peer: Peer,
    layout: Layout,
    out: Arc<Memory>,
    own_area: Option<Arc<Memory>>,
    socket: Arc<Reaped<OwnedFd>>,
    pub(super) alarm: Arc<Alarm>,
}

impl Control {
    /// Invites who is at the other end to be a borrower.
    pub(super) fn admit(&mut self, socket: Reaped<OwnedFd>, peer: Peer, terms: Terms) {
        let made = self.outfit(&terms).and_then(|outfit| Ok((outfit, Arc::new(Alarm::new()?))));
        let (outfit, alarm) = match made {
            Ok(made) => made,
            Err(e) => {
                let reason = format!("the lender cannot: {e}");
                self.count(|refused| &mut refused.failed);
                return self.tell(socket, &Refusal::new(Status::Busy, reason));
            }
        };
        let welcome = self.welcome(&terms, &outfit);
        let Outfit { layout, out, back, descriptors, witnesses, own_area, .. } = outfit;
        let (own_area, own_fd) = own_area.unzip();
        let Terms { slot, quota, mirror, .. } = terms;
        let loans = u64::from(quota) * u64::from(layout.channels);
        self.members += 1;
        let (socket, member) = (Arc::new(socket), self.members);
        let charge = Charge { uid: peer.uid, loans, memories: self.reaper.keep(witnesses) };
        let (here, bell) = (Arc::clone(&socket), Arc::clone(&alarm));
        let invitation =
            Invitation { terms, peer, layout, out, own_area, socket: here, alarm: bell };
        let state = Tenancy::Invited(Box::new(invitation));
        self.tenants.insert(slot, Tenant { charge, member, mirror, state });
        let (area, report) = (Arc::clone(&self.area), self.report.clone());
        let (bell, reaper) = (Arc::clone(&alarm), self.reaper.clone());
        let begin = move |socket: &Reaped<OwnedFd>| {
            take_hello(socket);
            let [out, handed_out] = &descriptors;
            let area = own_fd.as_ref().map_or(area.as_fd(), |fd| fd.as_fd());
            let descriptors = [area, out.as_fd(), handed_out.as_fd()];
            let mapped = send(socket, &welcome, &descriptors)
                .map_err(|_| Errno::PIPE)
                .and_then(|()| hear_mapped(socket, &bell));
            // Only now, and here: who makes holes in it meanwhile makes this thread wait.
            let back = mapped.and_then(|()| Memory::theirs(&back, layout.back_len()));
            let is_there = back.is_ok();
            let back = back.map(|back| back.reaped(&reaper));
            report.send(Report::Mapped { slot, member, back });
            is_there
        };
        let report = self.report.clone();
        let offends = move || {
            report.send(Report::Slow { slot, member });
        };
        if attend(alarm, socket, begin, offends).is_err() {
            self.count(|refused| &mut refused.failed);
            self.vacate(slot);
        }
    }

    /// Makes a borrower of one that was invited, and lends to it from now on; unless something came
    /// in between.
    pub(super) fn mapped(&mut self, slot: u8, back: rustix::io::Result<Memory>) {
        let Some(tenant) = self.tenants.get_mut(&slot) else { return };
        let Tenancy::Invited(invitation) = &tenant.state else { return };
        let back = match back {
            Ok(back) => Arc::new(back),
            Err(why) => {
                self.count(|refused| match why {
                    Errno::TIMEDOUT => &mut refused.late,
                    Errno::PIPE => &mut refused.gone,
                    // Of what it says, or because it has sealed what it was to map.
                    Errno::PROTO | Errno::PERM => &mut refused.invalid,
                    _ => &mut refused.failed,
                });
                // This has the socket closed.
                return self.vacate(slot);
            }
        };
        let (socket, alarm) = (Arc::clone(&invitation.socket), Arc::clone(&invitation.alarm));
        let here = Tenancy::Here { socket, alarm: Arc::clone(&alarm) };
        let Tenancy::Invited(invitation) = std::mem::replace(&mut tenant.state, here) else {
            return;
        };
        let party = Arc::new(Party {
            back,
            alarm: Arc::clone(&alarm),
            offences: AtomicU32::new(0),
            forgiven: self.options.offences,
        });
        let channels: Vec<Arc<ChannelTally>> =
            self.distributors.iter().map(|_| Arc::default()).collect();
        self.join(&invitation, &party, &channels);
        let Invitation { terms: Terms { quota, mirror, name, .. }, peer, .. } = *invitation;
        let Peer { pid, uid } = peer;
        let entry = Entry { name, pid, uid, mirror, quota, since: Instant::now(), party, channels };
        let mut state = self.roster.state();
        state.joined += 1;
        state.members.insert(slot, entry);
        drop(state);
        // After all this: who hears it is known, and is lent to with the distributors' next turn.
        alarm.ring();
    }

    fn outfit(&self, terms: &Terms) -> rustix::io::Result<Outfit> {
        let layout = Layout::new(self.distributors.len() as u32, terms.quota);
        let (out, out_fd) = Memory::ours(c"cachelane-lend-out", layout.out_len())?;
        let back = Memory::for_other(c"cachelane-lend-back", layout.back_len())?;
        let (out_fd, out_witness) = Witness::of(&out_fd)?;
        let (back_fd, back_witness) = Witness::of(&back)?;
        let mut witnesses = vec![out_witness, back_witness];
        let own_area = match self.options.private {
            true => Some(self.own_area(layout.channels, terms.quota, &mut witnesses)?),
            false => None,
        };
        // What is mapped may be more than the frames: huge pages round it up.
        let area = own_area.as_ref().map_or(self.area.as_fd(), |(_, fd)| fd.as_fd());
        let area_len = fstat(area)?.st_size as u64;
        let descriptors = [out_fd, back_fd];
        let out = Arc::new(out.reaped(&self.reaper));
        Ok(Outfit { layout, out, back, descriptors, witnesses, own_area, area_len })
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
        let (fd, witness) = Witness::of(&fd)?;
        witnesses.push(witness);
        Ok((Arc::new(area.reaped(&self.reaper)), fd))
    }

    fn join(&self, invitation: &Invitation, party: &Arc<Party>, tallies: &[Arc<ChannelTally>]) {
        let Invitation { layout, out, own_area, peer, .. } = invitation;
        let user = peer.uid;
        let Terms { slot, quota, mirror, .. } = invitation.terms;
        for (index, (post, tally)) in (0..).zip(self.distributors.iter().zip(tallies)) {
            let Some(post) = post else { continue };
            let (party, tally) = (Arc::clone(party), Arc::clone(tally));
            let copies = own_area.as_ref().map(|area| {
                Copies::new(Arc::clone(area), self.pool.area().frame_size(), quota, index)
            });
            let channel = Channel::new(out, *layout, index, party, tally);
            let channel = channel.with_copies(copies);
            let channel = Box::new(channel);
            // It fails only for one that was dropped, which is about to be known.
            post.send(Command::Join { slot, quota, user, mirror, channel });
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

/// Waits until the borrower says that it has mapped what it got, or the lender ends.
fn hear_mapped(socket: &Reaped<OwnedFd>, alarm: &Alarm) -> rustix::io::Result<()> {
    let until = Instant::now() + MAPPING;
    loop {
        // It stays where it is if it is something else: descriptors that come with it are not ours.
        match peek::<Mapped>(socket) {
            Ok(Received::Message(Mapped { magic: MAGIC }, _)) => {
                return receive::<Mapped>(socket).map(drop);
            }
            Ok(Received::Message(..) | Received::Garbage) => return Err(Errno::PROTO),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok(Received::Closed) | Err(_) => return Err(Errno::PIPE),
        }
        let left = until.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(socket, EVENTS), PollFd::new(alarm, PollFlags::IN)];
        let polled = poll(&mut polled, Timespec::try_from(left).ok().as_ref());
        if alarm.is_over() {
            return Err(Errno::CANCELED);
        }
        if polled == Ok(0) {
            return Err(Errno::TIMEDOUT);
        }
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

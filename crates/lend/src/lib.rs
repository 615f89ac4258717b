//! Received frames in other processes' hands, as tokens.
//!
//! A **lender** owns a pool of frames ([`frames`]) into which packets are received. It lends them
//! to **borrowers**: processes that connect to its Unix socket and map the frames read-only. A
//! packet reaches a borrower as a 32-byte descriptor in a ring, and comes back as a token in
//! another ring. Nothing is copied, and a borrower needs no privilege but to open the socket.
//!
//! Use it to receive at rates at which copying every packet to its reader costs more than the
//! reader's work. It optimises for batches, and for readers that are awake: one that polls costs the
//! lender no system call.
//!
//! A borrower cannot write. But it can *read* everything that its lender receives, as long as it
//! keeps the memory mapped, even after it has left. Borrowers that must not see each other's packets
//! need lenders of their own, or [`LenderOptions::private`], which copies each borrower's packets
//! into an area of its own.
//!
//! ```no_run
//! use frames::{AreaOptions, FrameArea, FramePool, Packet, PoolOptions};
//! use cachelane_lend::{Lender, LenderOptions};
//!
//! # fn receive(_: &mut Vec<Packet>) {}
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let area = FrameArea::new(&AreaOptions::default().shared(true))?;
//! let pool = FramePool::new(area, &PoolOptions::default())?;
//! let mut cache = pool.cache(0)?;
//! // One thread has packets to lend; each such thread has a distributor.
//! let (_lender, mut distributors) = Lender::open(&pool, 1, &LenderOptions::new("/run/lend"))?;
//! let distributor = &mut distributors[0];
//! let mut packets = Vec::new();
//! loop {
//!     distributor.collect(&mut cache); // what borrowers have given back
//!     receive(&mut packets); // into frames of the cache, for example with an AF_XDP socket
//!     distributor.lend(&mut packets, &mut cache);
//!     cache.maintain();
//! }
//! # }
//! ```
//!
//! [`Borrower`] has an example of the other side.
//!
//! # Who writes what
//!
//! Three memfds go to each borrower, each written by one side alone and sealed so:
//!
//! | memory | written by | has |
//! |---|---|---|
//! | area | the lender (the kernel, for it) | the frames |
//! | out | the lender | by channel: what is lent |
//! | back | the borrower | whether it sleeps; by channel: tokens |
//!
//! A lender has a thread for each queue or two; a thread and a borrower share a **channel**, a ring
//! in each direction. A token goes back in the channel that its loan came in, so that one thread
//! keeps each account, without a lock or an atomic instruction. A ring has a slot for every loan
//! that a borrower can have, so neither side has to tell the other what it has read.
//!
//! The layout is in `layout.rs`, `clients/c/cachelane_lend.h` and docs/lend-protocol.md.
//!
//! # Nothing that a borrower sends is believed
//!
//! The lender reads three things that a borrower writes: an index, tokens, and whether it sleeps. It
//! reads each of them once, and checks it against accounts of its own ([`frames::LoanTable`]). It
//! waits for no borrower, and no borrower can make it block: threads that do nothing else write to
//! and close what a borrower has in its hands.

mod borrower;
mod distributor;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hash;
#[cfg(feature = "knobs")]
mod knobs;
pub mod layout;
mod lender;
mod mailbox;
mod memory;
mod reaper;
mod ring;
mod spread;
mod sync;
mod wake;
mod waker;
mod wire;

#[cfg(feature = "knobs")]
pub use self::knobs::register;
pub use borrower::{Borrower, BorrowerOptions, Loan, Wait};
pub use distributor::Distributor;
pub use error::{Error, ErrorKind, Result};
pub use lender::{
    BorrowerStatus, Lender, LenderCounters, LenderOptions, Offences, Refusals, Standing,
};

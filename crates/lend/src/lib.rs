//! Received frames in other processes' hands, as tokens.
//!
//! A **lender** owns a pool of frames ([`frames`]) into which packets are received. It lends them
//! to **borrowers**, processes that connect to its Unix socket and map the frames read-only: a
//! packet reaches a borrower as a 32-byte descriptor in a ring, and comes back as a token in
//! another ring. Nothing is copied, and a borrower needs no privilege but to open the socket.
//!
//! For programs that receive at rates at which copying every packet to its reader costs more than
//! the reader's work. It optimises for batches, and for readers that are awake: one that polls
//! costs the lender no system call. It does not let a borrower write, and what a borrower can
//! *read* is everything that its lender receives, as long as it keeps the memory mapped, also after
//! it has left: who must not see each other's packets needs lenders of their own, or one that
//! copies what each of them gets into an area of its own ([`LenderOptions::private`]).
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
//! The lender reads three things that a borrower writes: an index, tokens, and whether it sleeps,
//! each of them once, and checks them against accounts of its own ([`frames::LoanTable`]). It
//! waits for no borrower, and no borrower can make it block: what a borrower has in its hands is
//! written to and closed by threads of its own (`alarm.rs`, `reaper.rs`).

#[cfg(not(loom))]
mod alarm;
#[cfg(not(loom))]
mod borrower;
#[cfg(not(loom))]
mod distributor;
#[cfg(not(loom))]
mod error;
#[cfg(all(feature = "fuzzing", not(loom)))]
pub mod fuzzing;
#[cfg(not(loom))]
mod hash;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
mod lender;
#[cfg(not(loom))]
mod mailbox;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod reaper;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod spread;
mod sync;
#[cfg(not(loom))]
mod tally;
mod wake;
#[cfg(not(loom))]
mod wire;

#[cfg(not(loom))]
pub use borrower::{Borrower, BorrowerOptions, Loan, Wait};
#[cfg(not(loom))]
pub use distributor::Distributor;
#[cfg(not(loom))]
pub use error::{Error, ErrorKind, Result};
#[cfg(not(loom))]
pub use lender::{BorrowerStatus, Lender, LenderCounters, LenderOptions, Offences, Refusals};

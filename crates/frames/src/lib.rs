//! A pool of equal frames of memory that knows where each frame is at home.
//!
//! For programs in which one thread takes a buffer and another one frees it: packet forwarders, above
//! all those on AF_XDP, where frames go through the kernel in between. It optimises for threads that
//! each stay on a CPU and take and give back mostly the same frames: that is one array access, without
//! an atomic instruction. It needs no privileges, and calls the system only for the memory of its
//! area. It does not support frames of different sizes, and does not grow.
//!
//! ```
//! use cachelane_frames::{AreaOptions, FrameArea, FramePool, PoolOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let area = FrameArea::new(&AreaOptions::default().frames(1024))?;
//! // Two threads, on CPUs that share no last-level cache.
//! let pool = FramePool::new(area, &PoolOptions::default().homes(vec![0, 1]))?;
//! let (mut here, mut there) = (pool.cache(0)?, pool.cache(1)?);
//!
//! let mut frame = here.get().ok_or("no frame")?;
//! pool.area().bytes_mut(&mut frame)[..5].copy_from_slice(b"hello");
//! // On the other thread: it is alien there, and what happens to it is a setting.
//! there.put(frame);
//!
//! drop((here, there));
//! pool.close()?; // every frame came back
//! # Ok(())
//! # }
//! ```
//!
//! # Homes, caches, places
//!
//! Every frame has a **home**, which follows from where it is in the area. A thread has a
//! [`LaneCache`] with a home; frames of other homes are **alien** there. Frames move between caches
//! by whole **magazines**, arrays of up to 254 of them:
//!
//! - each home has an **inbox**, where others leave frames for it;
//! - each lane (the homes whose CPUs share a last-level cache) has a **depot**, for what nobody has
//!   room for.
//!
//! A cache that runs short looks into its inbox, into the depot of its lane, into the depots of
//! other lanes, and into other homes' inboxes. The setting [`AlienFree`] says what happens to an alien
//! frame that is freed: it stays, it goes home, or whichever suits. You can change it at any time.
//!
//! # Where threads meet
//!
//! A cache is one thread's. Threads meet in four things:
//!
//! | what | written by | orders |
//! |---|---|---|
//! | a stack of magazines (`stack.rs`) | whoever pushes or pops | a push releases (S0), a pop acquires (S1): what is in a magazine goes with it |
//! | loose frames of a place (`place.rs`) | under a lock | the lock |
//! | who has a frame outside (`shared.rs`) | `release` stores with release, `claim` swaps with acquire | what was done to a frame before it was handed out; of two claims one fails |
//! | counts, and the request to give back | anybody | nothing: all relaxed, they guard no memory |
//!
//! The stack is checked by loom, the whole pool by shuttle, and the tests run under Miri and
//! ThreadSanitizer: `scripts/models`.
//!
//! # Mistakes are found
//!
//! A [`Frame`] is a handle that cannot be copied, so freeing one twice does not compile. Where frames
//! leave the program as addresses and come back, [`FramePool::claim`] refuses what is not out and what
//! is not of the area. A frame of another pool goes to that one. [`FramePool::close`] says what is
//! missing at the end. All of it is counted, and in debug builds fatal, with the last things that
//! happened to the frame.

mod area;
mod batch;
mod cache;
mod counters;
mod error;
mod frame;
mod history;
mod homes;
#[cfg(feature = "knobs")]
mod knobs;
mod loans;
mod magazine;
mod mode;
mod numbers;
mod options;
mod packet;
mod place;
mod places;
mod pool;
mod prefetch;
mod shared;
mod stack;
mod sync;

#[cfg(feature = "knobs")]
pub use self::knobs::register;
pub use area::{AreaOptions, FrameArea, HugePages};
pub use batch::Batch;
pub use cache::LaneCache;
pub use counters::{Census, Counters};
pub use error::{Error, ErrorKind, Refused, Result};
pub use frame::Frame;
pub use loans::{Accounting, LoanTable, TokenRefused};
pub use mode::AlienFree;
pub use options::PoolOptions;
pub use packet::Packet;
pub use pool::{FramePool, Holder, Leak};
pub use prefetch::prefetch;

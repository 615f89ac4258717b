//! A lender in this process, whose packets the test makes.

use std::borrow::BorrowMut;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use frames::{AreaOptions, FrameArea, FramePool, LaneCache, Packet, PoolOptions};
use lab::testing::comes_true;
use lend::{Distributor, Lender, LenderOptions};
use serde_json::Value;

use crate::common::{Place, ends_within, text};

/// The longest that a run in these tests takes once it has a reason to end.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A lender whose packets the test makes.
pub(crate) struct Rig {
    pub(crate) place: Place,
    pub(crate) socket: PathBuf,
    pub(crate) pool: FramePool,
    cache: LaneCache,
    lender: Option<Lender>,
    pub(crate) distributors: Vec<Distributor>,
}

impl Rig {
    pub(crate) fn new(set: impl FnOnce(&mut LenderOptions)) -> Rig {
        let place = Place::new();
        let socket = place.path().join("lend");
        let options = AreaOptions::default().frames(512).shared(true);
        let area = FrameArea::new(&options).expect("memory");
        let pool = FramePool::new(area, &PoolOptions::default()).expect("a pool");
        let mut options = LenderOptions::new(&socket);
        options.quota = 32;
        set(&mut options);
        let (lender, distributors) = Lender::open(&pool, 2, &options).expect("a lender");
        let cache = pool.cache(0).expect("a cache");
        Rig { place, socket, pool, cache, lender: Some(lender), distributors }
    }

    pub(crate) fn lender(&self) -> &Lender {
        self.lender.as_ref().expect("it has not ended")
    }

    /// Starts the command as the lender's borrower, and waits until so many have joined.
    pub(crate) fn start(&mut self, args: &[&str], borrowers: usize) -> Child {
        let socket = self.socket.to_str().expect("text").to_owned();
        let args = [&["borrow", &socket], args].concat();
        let command = self.place.command(&args);
        self.run(command, borrowers)
    }

    /// Joined, and known to each distributor.
    fn have_joined(&mut self, borrowers: usize) -> bool {
        self.collect();
        self.lender().borrowers().len() == borrowers
            && self.distributors.iter().all(Distributor::is_wanted)
    }

    /// Waits until so many have joined.
    pub(crate) fn joined(&mut self, borrowers: usize) {
        assert!(comes_true(|| self.have_joined(borrowers)), "{:?}", self.lender().borrowers());
    }

    /// The same of any command.
    pub(crate) fn run(&mut self, mut command: impl BorrowMut<Command>, borrowers: usize) -> Child {
        let mut child = command.borrow_mut().spawn().expect("it starts");
        let until = Instant::now() + SOON;
        loop {
            if self.have_joined(borrowers) {
                return child;
            }
            let ended = child.try_wait().expect("its status");
            assert!(ended.is_none() && Instant::now() < until, "{ended:?}: {:?}", error(child));
            std::thread::yield_now();
        }
    }

    pub(crate) fn collect(&mut self) {
        for distributor in &mut self.distributors {
            distributor.collect(&mut self.cache);
        }
    }

    /// Lends packets with these contents through a distributor: of each, its parts.
    pub(crate) fn lend(&mut self, through: usize, packets: &[Vec<Vec<u8>>]) {
        let mut all = Vec::new();
        for parts in packets {
            for (at, bytes) in parts.iter().enumerate() {
                let mut frame = self.cache.get().expect("a free frame");
                self.pool.area().bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(bytes);
                let more = at + 1 < parts.len();
                all.push(Packet { more, ..Packet::new(frame, bytes.len() as u32) });
            }
        }
        self.distributors[through].lend(&mut all, &mut self.cache);
    }

    /// Waits until everything came back.
    pub(crate) fn settle(&mut self) {
        let until = Instant::now() + SOON;
        while self.distributors.iter().any(|each| each.on_loan() > 0) {
            assert!(Instant::now() < until, "it does not give back");
            self.collect();
            std::thread::yield_now();
        }
    }

    /// Ends the lender: no frame is missing.
    pub(crate) fn end(mut self) {
        self.end_lender();
        let Rig { pool, cache, .. } = self;
        drop(cache);
        pool.close().expect("every frame came back");
    }

    /// Another lender at the same path, after the end of the one before.
    pub(crate) fn start_again(&mut self) {
        let mut options = LenderOptions::new(&self.socket);
        options.quota = 32;
        let (lender, distributors) = Lender::open(&self.pool, 2, &options).expect("a lender");
        (self.lender, self.distributors) = (Some(lender), distributors);
    }

    pub(crate) fn end_lender(&mut self) {
        if let Some(lender) = self.lender.take() {
            lender.close();
        }
        self.distributors.clear();
    }
}

/// UDP, the flow's number as source port, of this many bytes.
pub(crate) fn udp(flow: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend(flow.to_be_bytes());
    bytes.extend([0, 53, 0, 26, 0, 0]);
    bytes.resize(len, flow as u8);
    bytes
}

/// A packet of each flow, in one part each.
pub(crate) fn flows(flows: std::ops::Range<u16>, len: usize) -> Vec<Vec<Vec<u8>>> {
    flows.map(|flow| vec![udp(flow, len)]).collect()
}

pub(crate) fn error(mut child: Child) -> String {
    let mut said = String::new();
    // Whatever there is.
    let _ = child.kill();
    let _ = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
    said
}

pub(crate) fn ends(child: Child) -> Output {
    let output = ends_within(child, SOON);
    assert!(output.status.success(), "{output:?}");
    output
}

pub(crate) fn object(output: &Output) -> Value {
    let last = text(&output.stdout).lines().last().expect("a line");
    serde_json::from_str(last).expect("JSON")
}

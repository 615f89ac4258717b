//! A lender to test, and a borrower that is made of the documented layout alone and does what it
//! is told, right or wrong.
#![allow(dead_code, unreachable_pub, unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cachelane_lend::layout::{
    BackHeader, HELLO_MIRROR, Hello, LINE, Layout, Loan, MAGIC, Mapped, Welcome,
};
use cachelane_lend::{Distributor, Lender, LenderOptions};
use frames::{
    Accounting, AreaOptions, Frame, FrameArea, FramePool, HugePages, LaneCache, Packet, PoolOptions,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use zerocopy::{FromZeros as _, IntoBytes as _};

pub mod part;

pub const BOTH: [Accounting; 2] = [Accounting::Counters, Accounting::Ledgers];

/// A lender with one thread's distributors, all driven by the test.
pub struct Rig {
    pub pool: FramePool,
    pub cache: LaneCache,
    pub lender: Lender,
    pub distributors: Vec<Distributor>,
    pub socket: PathBuf,
    dir: tempfile::TempDir,
}

pub fn pool(frames: u32) -> FramePool {
    let area = FrameArea::new(
        &AreaOptions::default()
            .frames(frames)
            .frame_size(2048)
            .huge_pages(HugePages::Never)
            .shared(true),
    );
    let options = PoolOptions::default().fatal(true);
    FramePool::new(area.unwrap(), &options).unwrap()
}

impl Rig {
    pub fn new(frames: u32, distributors: u32, set: impl FnOnce(&mut LenderOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pool = pool(frames);
        let socket = dir.path().join("lend");
        let mut options = LenderOptions::new(&socket);
        options.joins_per_second = 1_000_000;
        set(&mut options);
        let (lender, distributors) = Lender::open(&pool, distributors, &options).unwrap();
        let cache = pool.cache(0).unwrap();
        Self { pool, cache, lender, distributors, socket, dir }
    }

    /// One that keeps account like this, with so large a quota.
    pub fn keeping(frames: u32, distributors: u32, accounting: Accounting, quota: u32) -> Self {
        Self::new(frames, distributors, |options| {
            (options.accounting, options.quota) = (accounting, quota);
        })
    }

    pub fn connect(&self, name: &str, quota: u32) -> RawBorrower {
        RawBorrower::connect(&self.socket, &hello(name, quota, false)).unwrap()
    }

    pub fn mirror(&self, name: &str, quota: u32) -> RawBorrower {
        RawBorrower::connect(&self.socket, &hello(name, quota, true)).unwrap()
    }

    pub fn refusal(&self, hello: &Hello) -> Box<Welcome> {
        match RawBorrower::connect(&self.socket, hello) {
            Ok(_) => panic!("not refused"),
            Err(refusal) => refusal,
        }
    }

    /// Packets of these flows, in the order given: UDP, the flow's number as source port, and the
    /// packet's place in the payload.
    pub fn packets(&mut self, flows: impl IntoIterator<Item = u16>) -> Vec<Packet> {
        let (pool, cache) = (&self.pool, &mut self.cache);
        let frames = flows.into_iter().zip(0..).map(|(flow, at)| {
            let mut frame = cache.get().expect("a free frame");
            let bytes = udp(flow, at);
            pool.area().bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(&bytes);
            Packet::new(frame, bytes.len() as u32)
        });
        frames.collect()
    }

    /// Lends packets of these flows through a distributor.
    pub fn lend(&mut self, distributor: usize, flows: impl IntoIterator<Item = u16>) {
        let mut packets = self.packets(flows);
        self.distributors[distributor].lend(&mut packets, &mut self.cache);
        assert!(packets.is_empty());
    }

    pub fn collect(&mut self) -> usize {
        self.distributors.iter_mut().map(|each| each.collect(&mut self.cache)).sum()
    }

    pub fn on_loan(&self) -> u32 {
        self.distributors.iter().map(Distributor::on_loan).sum()
    }

    /// Turns until it is so.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_so(self) {
            let counters = self.lender.counters();
            assert!(Instant::now() < end, "waited 20 s until {what}: {counters:?}");
            self.collect();
            std::thread::yield_now();
        }
    }

    /// Changes how account is kept, with somebody to look into the distributors meanwhile.
    pub fn set_accounting(&mut self, to: Accounting) -> cachelane_lend::Result<()> {
        let Self { lender, distributors, cache, .. } = self;
        let lender = &*lender;
        std::thread::scope(|scope| {
            let change = scope.spawn(move || lender.set_accounting(to));
            while !change.is_finished() {
                for each in distributors.iter_mut() {
                    each.collect(cache);
                }
                std::thread::yield_now();
            }
            change.join().unwrap()
        })
    }

    /// Waits until all borrowers have left, and ends everything.
    pub fn close_empty(mut self) {
        self.until("all have left", |rig| rig.lender.borrowers().is_empty());
        self.close();
    }

    /// Ends everything: no frame is missing.
    pub fn close(self) {
        let Self { pool, cache, lender, distributors, socket, dir } = self;
        lender.close();
        assert!(!socket.exists());
        drop((distributors, cache, dir));
        pool.close().expect("every frame came back");
    }
}

pub fn hello(name: &str, quota: u32, mirror: bool) -> Hello {
    let mut hello = Hello {
        magic: MAGIC,
        version_min: 2,
        version_max: 2,
        flags: if mirror { HELLO_MIRROR } else { 0 },
        quota,
        name: [0; 48],
    };
    hello.name[..name.len()].copy_from_slice(name.as_bytes());
    hello
}

/// The text of a refusal.
pub fn reason(welcome: &Welcome) -> String {
    let end = welcome.reason.iter().position(|byte| *byte == 0).expect("a byte of 0");
    String::from_utf8(welcome.reason[..end].to_vec()).expect("UTF-8")
}

/// A packet whose flow and place can be read from it.
pub fn udp(flow: u16, at: u32) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend(flow.to_be_bytes());
    bytes.extend([0, 53, 0, 26, 0, 0]);
    bytes.extend(at.to_be_bytes());
    bytes.resize(60, 0);
    bytes
}

/// What [`udp`] put in.
pub fn flow_and_place(packet: &[u8]) -> (u16, u32) {
    let flow = u16::from_be_bytes(packet[34..36].try_into().unwrap());
    (flow, u32::from_be_bytes(packet[42..46].try_into().unwrap()))
}

/// A mapping of a whole memory.
pub struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: reached by atomics and volatile reads.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    pub fn new(fd: impl AsFd, len: u64, writable: bool) -> rustix::io::Result<Self> {
        let mut access = ProtFlags::READ;
        access.set(ProtFlags::WRITE, writable);
        let len = len as usize;
        // SAFETY: a new mapping.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) }?;
        Ok(Self { start: NonNull::new(start.cast()).unwrap(), len })
    }

    /// All of it as words.
    pub fn words(&self) -> &[AtomicU32] {
        // SAFETY: mapped, aligned to a page; the other side uses atomics too.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 4) }
    }

    pub fn word(&self, offset: usize) -> &AtomicU32 {
        &self.words()[offset / 4]
    }

    pub fn loan(&self, offset: usize) -> Loan {
        assert!(offset + size_of::<Loan>() <= self.len);
        // SAFETY: inside the mapping, and aligned as all offsets of slots are.
        unsafe { self.start.add(offset).cast::<Loan>().read_volatile() }
    }

    pub fn bytes(&self, offset: u64, len: u32) -> Vec<u8> {
        let (offset, len) = (offset as usize, len as usize);
        assert!(offset + len <= self.len, "{offset} + {len} of {}", self.len);
        // SAFETY: inside the mapping; the lender writes the frame again only once it is returned.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }.to_vec()
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and nothing refers to it any more.
        unsafe { munmap(self.start.as_ptr().cast(), self.len) }.unwrap();
    }
}

/// A borrower that knows the documented layout, and does what it is told.
pub struct RawBorrower {
    pub socket: OwnedFd,
    pub welcome: Welcome,
    pub layout: Layout,
    pub area: Map,
    pub out: Map,
    pub back: Map,
    /// Area, out, back.
    pub memories: [OwnedFd; 3],
    /// By channel.
    pub read: Vec<u32>,
    pub returned: Vec<u32>,
}

pub fn dial(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

pub fn say(socket: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    let mut none = SendAncillaryBuffer::default();
    sendmsg(socket, &[IoSlice::new(bytes)], &mut none, SendFlags::NOSIGNAL)
}

/// What the lender answers: None at the end.
pub fn answer(socket: &OwnedFd) -> rustix::io::Result<Option<(Welcome, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut welcome = Welcome::new_zeroed();
    let buffer = &mut [IoSliceMut::new(welcome.as_mut_bytes())];
    let got = recvmsg(socket, buffer, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 {
        return Ok(None);
    }
    assert_eq!(got.bytes, size_of::<Welcome>());
    let descriptors = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => panic!("neither descriptors nor nothing"),
    });
    let descriptors = descriptors.collect();
    Ok(Some((welcome, descriptors)))
}

impl RawBorrower {
    /// A borrower, or the refusal.
    pub fn connect(path: &Path, hello: &Hello) -> Result<Self, Box<Welcome>> {
        let borrower = Self::pending(path, hello)?;
        assert!(borrower.say_mapped(), "it was not taken in");
        Ok(borrower)
    }

    /// One that has not said yet that all is mapped, or the refusal.
    pub fn pending(path: &Path, hello: &Hello) -> Result<Self, Box<Welcome>> {
        let socket = dial(path).expect("connect");
        say(&socket, hello.as_bytes()).expect("say hello");
        let (welcome, descriptors) = answer(&socket).expect("an answer").expect("not the end");
        assert_eq!(welcome.magic, MAGIC);
        if welcome.status != 0 {
            assert!(descriptors.is_empty() && welcome.version == 0);
            assert_eq!(answer(&socket).expect("the end").map(|(welcome, _)| welcome.status), None);
            return Err(welcome.into());
        }
        let [area, out, back]: [OwnedFd; 3] = descriptors.try_into().expect("three");
        let layout = Layout { channels: welcome.channels, slots: welcome.slots };
        assert_eq!(welcome.out_len, layout.out_len() as u64);
        assert_eq!(welcome.back_len, layout.back_len() as u64);
        let none = vec![0; welcome.channels as usize];
        let borrower = Self {
            socket,
            welcome,
            layout,
            area: Map::new(&area, welcome.area_len, false).unwrap(),
            out: Map::new(&out, welcome.out_len, false).unwrap(),
            back: Map::new(&back, welcome.back_len, true).unwrap(),
            memories: [area, out, back],
            read: none.clone(),
            returned: none,
        };
        Ok(borrower)
    }

    /// Says that all is mapped, and waits until the lender says that it lends; whether it does.
    pub fn say_mapped(&self) -> bool {
        // It may have hung up.
        let _ = say(&self.socket, Mapped { magic: MAGIC }.as_bytes());
        let heard = rustix::net::recv(&self.socket, &mut [0; 8], RecvFlags::empty());
        matches!(heard, Ok((_, 1..)))
    }

    /// All loans that it has not read yet, of a channel.
    pub fn receive(&mut self, channel: u32) -> Vec<Loan> {
        let base = self.layout.out_channel(channel);
        let producer = self.out.word(base).load(Ordering::Acquire);
        let read = &mut self.read[channel as usize];
        let mut loans = Vec::new();
        while *read != producer {
            let slot = (*read & (self.layout.slots - 1)) as usize;
            loans.push(self.out.loan(base + LINE + slot * size_of::<Loan>()));
            *read = read.wrapping_add(1);
        }
        assert!(loans.len() <= self.welcome.quota as usize);
        loans
    }

    pub fn bytes(&self, loan: &Loan) -> Vec<u8> {
        self.area.bytes(loan.addr, loan.len)
    }

    /// Gives tokens back, whatever they are.
    pub fn give_back(&mut self, channel: u32, tokens: impl IntoIterator<Item = u32>) {
        let base = self.layout.back_channel(channel);
        let mut next = self.returned[channel as usize];
        for token in tokens {
            let slot = (next & (self.layout.slots - 1)) as usize;
            self.back.word(base + LINE + slot * 4).store(token, Ordering::Relaxed);
            next = next.wrapping_add(1);
        }
        self.set_index(channel, next);
    }

    /// Says how many tokens it ever gave back.
    pub fn set_index(&mut self, channel: u32, index: u32) {
        self.returned[channel as usize] = index;
        let at = self.layout.back_channel(channel) + std::mem::offset_of!(BackHeader, producer);
        self.back.word(at).store(index, Ordering::Release);
    }

    pub fn asleep(&self) -> &AtomicU32 {
        self.back.word(Layout::ASLEEP)
    }

    /// What the lender says it dropped.
    pub fn dropped(&self, channel: u32) -> u32 {
        let at = std::mem::offset_of!(cachelane_lend::layout::OutHeader, dropped);
        self.out.word(self.layout.out_channel(channel) + at).load(Ordering::Relaxed)
    }

    pub fn is_closed(&self, channel: u32) -> bool {
        let at = std::mem::offset_of!(cachelane_lend::layout::OutHeader, closed);
        self.out.word(self.layout.out_channel(channel) + at).load(Ordering::Acquire) != 0
    }

    /// Why nothing follows, as the lender says it.
    pub fn ended(&self) -> u32 {
        let at = std::mem::offset_of!(cachelane_lend::layout::OutHeader, ended);
        self.out.word(at).load(Ordering::Acquire)
    }

    /// Takes the wake-ups that there are; how many.
    pub fn take_wakes(&self) -> u32 {
        let mut wakes = 0;
        while let Ok((_, 1..)) = rustix::net::recv(&self.socket, &mut [0; 8], RecvFlags::DONTWAIT) {
            wakes += 1;
        }
        wakes
    }

    /// All that it has of the lender.
    pub fn descriptors(&self) -> Vec<OwnedFd> {
        let all = self.memories.iter().chain([&self.socket]);
        all.map(|fd| fd.try_clone().expect("a descriptor")).collect()
    }

    /// Whether the lender has hung up, without waiting. It takes the wake-ups that there are.
    pub fn is_disconnected(&self) -> bool {
        loop {
            match rustix::net::recv(&self.socket, &mut [0; 8], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return true,
                Ok(_) => {}
                Err(Errno::AGAIN) => return false,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Whether the lender hangs up: on a thread that nobody waits for.
    pub fn is_hung_up_on(&self) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.is_disconnected() && Instant::now() < until {
            std::thread::yield_now();
        }
        self.is_disconnected()
    }
}

/// Takes all frames of a cache, to see how many there are.
pub fn drain(cache: &mut LaneCache) -> Vec<Frame> {
    std::iter::from_fn(|| cache.get()).collect()
}

//! A file that is never ready, and never says so: to poll it is to wait for ever.

#![allow(unsafe_code, unreachable_pub)]
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A FUSE file system of one file. When it is dropped, whoever waits for it goes on.
pub struct Fuse {
    pub file: OwnedFd,
    polls: Arc<AtomicU32>,
    over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
    _at: tempfile::NamedTempFile,
}

const INIT: u32 = 26;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const POLL: u32 = 40;
/// Forget, interrupt: nobody waits for an answer.
const UNANSWERED: [u32; 2] = [2, 36];

impl Fuse {
    /// Needs root.
    pub fn new() -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let at = tempfile::NamedTempFile::new().unwrap();
        let (polls, over) = (Arc::<AtomicU32>::default(), Arc::<AtomicBool>::default());
        let path = std::ffi::CString::new(at.path().to_str().unwrap()).unwrap();
        let number = device.as_raw_fd();
        let server = {
            let (polls, over) = (Arc::clone(&polls), Arc::clone(&over));
            thread::spawn(move || serve(device, &polls, &over))
        };
        // In a mount namespace of its own, which ends with the thread; the open file stays.
        let mounted = thread::spawn(move || {
            // SAFETY: of this thread alone, which ends here.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.expect("a mount namespace");
            let none = std::ptr::null();
            // SAFETY: strings that outlive the calls.
            unsafe {
                let flags = libc::MS_REC | libc::MS_PRIVATE;
                assert_eq!(libc::mount(none, c"/".as_ptr(), none, flags, none.cast()), 0);
            }
            let options = format!("fd={number},rootmode=100666,user_id=0,group_id=0\0");
            // SAFETY: as above.
            let mounted = unsafe {
                let kind = c"fuse".as_ptr();
                libc::mount(kind, path.as_ptr(), kind, 0, options.as_ptr().cast())
            };
            assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
            File::open(path.to_str().unwrap()).expect("the file").into()
        });
        let file = mounted.join().expect("a FUSE file");
        Self { file, polls, over, server: Some(server), _at: at }
    }

    /// How often it was asked whether it is ready.
    pub fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.server.take().unwrap().join().unwrap();
    }
}

/// Answers all but polls. When the device is closed, the kernel answers them.
fn serve(mut device: File, polls: &AtomicU32, over: &AtomicBool) {
    let mut request = vec![0; 1 << 17];
    while !over.load(Ordering::Relaxed) {
        let soon = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        // Before it is mounted it says that there is an error.
        let ready = poll(&mut [PollFd::new(&device, PollFlags::IN)], Some(&soon));
        if ready != Ok(1) || device.read(&mut request).is_err() {
            thread::yield_now();
            continue;
        }
        let opcode = u32::from_ne_bytes(request[4..8].try_into().unwrap());
        let unique: [u8; 8] = request[8..16].try_into().unwrap();
        let (error, body): (i32, Vec<u8>) = match opcode {
            INIT => (0, words(&[7, 31, 0, 0, 0, 4096], 64)),
            GETATTR => (0, attributes()),
            OPEN => (0, vec![0; 16]),
            RELEASE => (0, vec![]),
            POLL => {
                polls.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            opcode if UNANSWERED.contains(&opcode) => continue,
            _ => (-libc::ENOSYS, vec![]),
        };
        let mut answer = (16 + body.len() as u32).to_ne_bytes().to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(unique);
        answer.extend(body);
        // An asker that was killed has gone.
        let _ = device.write(&answer);
    }
}

/// A regular file that everybody may read.
fn attributes() -> Vec<u8> {
    let mut bytes = vec![0; 104];
    bytes[16..24].copy_from_slice(&1_u64.to_ne_bytes());
    bytes[76..80].copy_from_slice(&0o100_666_u32.to_ne_bytes());
    bytes[80..84].copy_from_slice(&1_u32.to_ne_bytes());
    bytes
}

fn words(first: &[u32], len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = first.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.resize(len, 0);
    bytes
}

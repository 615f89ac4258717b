//! Programs: their names, runs on given input, and what they cost.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::ops::{Add, Sub};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;

use libbpf_sys::{bpf_insn, bpf_prog_info, bpf_prog_load_opts, bpf_test_run_opts};

use crate::{Link, Plain, checked};

/// A loaded program, for as long as anybody has it.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// A packet that a program is run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet<C> {
    /// Its bytes; for XDP with its metadata before them.
    pub data: Vec<u8>,
    /// What the kernel says of it: `xdp_md` or `__sk_buff`.
    pub context: C,
}

/// How often and how long a program ran while [`Statistics`] were on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTime {
    /// Runs.
    pub runs: u64,
    /// Nanoseconds of all of them.
    pub nanoseconds: u64,
}

/// Has the kernel count how often and how long BPF programs run, for as long as this is there. All
/// programs of the machine run some 20 ns longer meanwhile.
#[derive(Debug)]
pub struct Statistics(#[expect(dead_code, reason = "held open")] OwnedFd);

/// The name of a loaded program; none if it is gone, or the caller may not ask.
pub fn program_name(id: u32) -> Option<String> {
    let program = libbpf_rs::ProgramHandle::from_prog_id(id).ok()?;
    Some(program.name().to_string_lossy().into_owned())
}

impl Program {
    /// The program of a loaded skeleton.
    pub fn of(program: &impl AsFd) -> io::Result<Program> {
        program.as_fd().try_clone_to_owned().map(Program)
    }

    /// Loads instructions as an XDP program. The error has the end of what the verifier says besides.
    pub(crate) fn load_xdp(
        name: &CStr,
        instructions: &[bpf_insn],
        multi_buffer: bool,
    ) -> Result<Program, (io::Error, String)> {
        const LOG: usize = 1 << 20;
        let token = token();
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        let load = |log: &mut [u8]| {
            let mut options = bpf_prog_load_opts {
                sz: size_of::<bpf_prog_load_opts>() as libbpf_sys::size_t,
                expected_attach_type: libbpf_sys::BPF_XDP,
                prog_flags: flag(multi_buffer, libbpf_sys::BPF_F_XDP_HAS_FRAGS)
                    | flag(token.is_some(), libbpf_sys::BPF_F_TOKEN_FD),
                token_fd: token.as_ref().map_or(0, |token| token.as_raw_fd().cast_unsigned()),
                log_level: u32::from(!log.is_empty()),
                log_size: log.len() as u32,
                log_buf: if log.is_empty() { ptr::null_mut() } else { log.as_mut_ptr().cast() },
                ..Default::default()
            };
            // SAFETY: all that is pointed to lives as long as the call, with its size beside it.
            checked(unsafe {
                libbpf_sys::bpf_prog_load(
                    libbpf_sys::BPF_PROG_TYPE_XDP,
                    name.as_ptr(),
                    c"GPL".as_ptr(),
                    instructions.as_ptr(),
                    instructions.len() as libbpf_sys::size_t,
                    &mut options,
                )
            })
        };
        match load(&mut []) {
            // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
            Ok(fd) => Ok(Program(unsafe { OwnedFd::from_raw_fd(fd) })),
            // The verifier refuses with EACCES.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err((error, String::new())),
            Err(_) => {
                // Once more, for what the verifier says.
                let mut log = vec![0; LOG];
                match load(&mut log) {
                    // SAFETY: as above.
                    Ok(fd) => Ok(Program(unsafe { OwnedFd::from_raw_fd(fd) })),
                    Err(error) => Err((error, end_of(&log))),
                }
            }
        }
    }

    /// Its number.
    pub fn id(&self) -> io::Result<u32> {
        Ok(self.info()?.id)
    }

    /// What it has cost since it was loaded, while [`Statistics`] were on.
    pub fn run_time(&self) -> io::Result<RunTime> {
        let info = self.info()?;
        Ok(RunTime { runs: info.run_cnt, nanoseconds: info.run_time_ns })
    }

    /// Runs it once, on this CPU, where its context is a struct: a program of type syscall, which may
    /// change it, or of a raw tracepoint, of which these are the arguments. Returns what it returns.
    pub fn run(&self, context: &mut impl Plain) -> io::Result<u32> {
        self.test_run(&mut bpf_test_run_opts {
            ctx_in: ptr::from_mut(context).cast(),
            ctx_size_in: size_of_val(context) as u32,
            ..Default::default()
        })
    }

    /// Runs it once on a packet, which it may change. Returns its verdict.
    pub fn run_on<C: Plain>(&self, packet: &mut Packet<C>) -> io::Result<u32> {
        // What a program may put before and behind a packet is less.
        let mut data = vec![0_u8; packet.data.len() + 512];
        let mut context = C::zeroed();
        let mut options = bpf_test_run_opts {
            data_in: packet.data.as_ptr().cast(),
            data_size_in: packet.data.len() as u32,
            data_out: data.as_mut_ptr().cast(),
            data_size_out: data.len() as u32,
            ctx_in: ptr::from_ref(&packet.context).cast(),
            ctx_size_in: size_of::<C>() as u32,
            ctx_out: ptr::from_mut(&mut context).cast(),
            ctx_size_out: size_of::<C>() as u32,
            repeat: 1,
            ..Default::default()
        };
        let verdict = self.test_run(&mut options)?;
        data.truncate(options.data_size_out as usize);
        *packet = Packet { data, context };
        Ok(verdict)
    }

    /// Runs it so often on a packet, for what it does with copies of it. A signal may cut that short.
    /// `flags` are `BPF_F_TEST_*` of linux/bpf.h.
    ///
    /// # Errors
    /// What the system reports, `Interrupted` among it.
    pub fn repeat(&self, data: &[u8], times: u32, flags: u32) -> io::Result<()> {
        let mut options = bpf_test_run_opts {
            data_in: data.as_ptr().cast(),
            data_size_in: data.len() as u32,
            flags,
            repeat: times.cast_signed(),
            ..Default::default()
        };
        self.test_run(&mut options).map(drop)
    }

    /// The caller has set `options` to what outlives the call, with its sizes; any bytes make what
    /// the kernel writes.
    fn test_run(&self, options: &mut bpf_test_run_opts) -> io::Result<u32> {
        options.sz = size_of::<bpf_test_run_opts>() as libbpf_sys::size_t;
        // SAFETY: as above; the kernel writes no more than the sizes say.
        checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(self.0.as_raw_fd(), options) })?;
        Ok(options.retval)
    }

    /// Has it run at a tracepoint, as a raw one.
    pub fn attach_tracepoint(&self, name: &CStr) -> io::Result<Link> {
        // SAFETY: both live as long as the call.
        let fd = unsafe { libbpf_sys::bpf_raw_tracepoint_open(name.as_ptr(), self.0.as_raw_fd()) };
        Link::of(fd)
    }

    fn info(&self) -> io::Result<bpf_prog_info> {
        let mut info = MaybeUninit::<bpf_prog_info>::zeroed();
        let mut size = size_of::<bpf_prog_info>() as u32;
        // SAFETY: the kernel writes at most `size` bytes to `info`, which is as long; both live as
        // long as the call.
        checked(unsafe {
            libbpf_sys::bpf_prog_get_info_by_fd(
                self.0.as_raw_fd(),
                info.as_mut_ptr(),
                ptr::from_mut(&mut size),
            )
        })?;
        // SAFETY: it was zeros, which are a value of this plain struct.
        Ok(unsafe { info.assume_init() })
    }
}

/// The kernel's leave to use BPF in a user namespace, where it gives one, as libbpf looks for it.
fn token() -> Option<OwnedFd> {
    let path = std::env::var_os("LIBBPF_BPF_TOKEN_PATH").unwrap_or_else(|| "/sys/fs/bpf".into());
    let files = std::fs::File::open(path).ok()?;
    // SAFETY: the file is open for as long as the call, which takes no options.
    let fd = unsafe { libbpf_sys::bpf_token_create(files.as_raw_fd(), ptr::null_mut()) };
    // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What a verifier's log ends with, but for its figures.
fn end_of(log: &[u8]) -> String {
    let log = CStr::from_bytes_until_nul(log).unwrap_or_default().to_string_lossy();
    let mut lines = log.lines().map(str::trim);
    lines
        .rfind(|line| !line.is_empty() && !line.starts_with("processed "))
        .unwrap_or_default()
        .into()
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl RunTime {
    /// Nanoseconds of one run; none without runs.
    pub fn mean(self) -> Option<f64> {
        (self.runs > 0).then(|| self.nanoseconds as f64 / self.runs as f64)
    }
}

impl Add for RunTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            runs: self.runs.wrapping_add(other.runs),
            nanoseconds: self.nanoseconds.wrapping_add(other.nanoseconds),
        }
    }
}

impl Sub for RunTime {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            runs: self.runs.wrapping_sub(before.runs),
            nanoseconds: self.nanoseconds.wrapping_sub(before.nanoseconds),
        }
    }
}

impl Statistics {
    /// From now on.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN`.
    pub fn enable() -> io::Result<Self> {
        // SAFETY: it takes a number and returns a descriptor or an error.
        let fd = checked(unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) })?;
        // SAFETY: the call has just returned this descriptor, and nobody else knows of it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }
}

// SAFETY: it is nothing but integers of 32 bits.
unsafe impl Plain for libbpf_sys::xdp_md {}

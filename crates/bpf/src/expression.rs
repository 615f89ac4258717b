//! Filter expressions, as tcpdump has them (pcap-filter(7)).
//!
//! libpcap compiles them, to classic BPF. It is loaded when the first expression is compiled, so that
//! who has none needs no libpcap. A compiled expression tells for itself whether it matches a packet
//! ([`Expression::matches`]), or becomes an XDP program ([`Expression::program`]).
#![allow(unsafe_code)]

use std::error::Error as _;
use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::os::fd::AsFd as _;
use std::ptr::{self, NonNull};
use std::sync::mpsc;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{fmt, io, slice, thread};

use libc::sock_filter;
use libloading::Library;

use crate::{Map, Program, classic};

/// The names that libpcap has: where it comes from, and in Debian.
const NAMES: [&str; 2] = ["libpcap.so.1", "libpcap.so.0.8"];

/// The most bytes of an expression, which is what an argument of a command may have.
const LONGEST: usize = 128 << 10;

/// An expression that libpcap has compiled, for packets of Ethernet.
#[derive(Clone)]
pub struct Expression {
    text: String,
    /// Forward jumps, the last one an answer: libpcap has checked it.
    pub(crate) steps: Vec<sock_filter>,
}

/// Why there is no compiled expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpressionError {
    /// libpcap is not there, or is none; what the loader says.
    NoLibpcap(String),
    /// What libpcap says of the expression.
    Wrong(String),
    /// What this host lacks, maybe for now: the address of a name, memory.
    Host(String),
    /// libpcap was not done within so long.
    Slow(Duration),
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpressionError::NoLibpcap(why) => write!(
                f,
                "libpcap, which reads expressions, cannot be loaded: {why}; install it (Debian: \
                 libpcap0.8, Fedora: libpcap)"
            ),
            ExpressionError::Wrong(why) | ExpressionError::Host(why) => f.write_str(why),
            ExpressionError::Slow(limit) => write!(
                f,
                "libpcap has not compiled it within {limit:?}: it takes long for hundreds of \
                 alternatives (expected fewer, or ranges and networks)"
            ),
        }
    }
}

impl std::error::Error for ExpressionError {}

impl Expression {
    /// Compiles an expression, for which libpcap may take so long.
    ///
    /// # Errors
    /// Without libpcap, for what is no expression, and for one that takes longer.
    pub fn compile(text: &str, limit: Duration) -> Result<Expression, ExpressionError> {
        let library = Libpcap::load().as_ref().map_err(Clone::clone)?;
        let steps = library.compile(text, limit)?;
        if let Some(what) = classic::asks_for(&steps) {
            return Err(ExpressionError::Wrong(what));
        }
        Ok(Expression { text: text.to_owned(), steps })
    }

    /// One of these steps, which must be those of a filter.
    #[cfg(test)]
    pub(crate) fn of(text: String, steps: Vec<sock_filter>) -> Expression {
        Expression { text, steps }
    }

    /// As it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How long it is: steps of classic BPF.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Whether it matches a packet that begins with these bytes and has so many in all.
    pub fn matches(&self, bytes: &[u8], len: usize) -> bool {
        let library = Libpcap::load().as_ref().expect("it has compiled this");
        library.matches(&self.steps, bytes, len)
    }

    /// Loads it as an XDP program of this name, which hands packets on to the first program of a map
    /// (`BPF_MAP_TYPE_PROG_ARRAY`) if they match, and to the second if not. If packets may be in
    /// several buffers, it looks into the first, and the map's programs must be for such packets too.
    ///
    /// # Errors
    /// `PermissionDenied`, and otherwise what of it the kernel, or a program of XDP, cannot do.
    pub fn program(&self, name: &CStr, next: &Map, multi_buffer: bool) -> io::Result<Program> {
        let steps = self.steps.len();
        let refused = |why: String| io::Error::other(format!("{why} (it has {steps} steps)"));
        let instructions = classic::translate(&self.steps, next.as_fd());
        let instructions = instructions.map_err(|why| refused(why.to_string()))?;
        Program::load_xdp(name, &instructions, multi_buffer).map_err(|(error, said)| {
            match error.raw_os_error() {
                Some(libc::EPERM) => error,
                _ if said.is_empty() => refused(error.to_string()),
                _ => refused(format!("{error}: {said}")),
            }
        })
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        let fields = |step: &sock_filter| (step.code, step.jt, step.jf, step.k);
        self.text == other.text && self.steps.iter().map(fields).eq(other.steps.iter().map(fields))
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?}, {} steps)", self.text, self.steps.len())
    }
}

/// A handle of libpcap, and what it makes of an expression (pcap/bpf.h).
enum Pcap {}

#[repr(C)]
struct Compiled {
    len: c_uint,
    steps: *mut sock_filter,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut Pcap;
type Close = unsafe extern "C" fn(*mut Pcap);
type Compile = unsafe extern "C" fn(*mut Pcap, *mut Compiled, *const c_char, c_int, u32) -> c_int;
type FreeCode = unsafe extern "C" fn(*mut Compiled);
type GetErr = unsafe extern "C" fn(*mut Pcap) -> *const c_char;
type Filter = unsafe extern "C" fn(*const sock_filter, *const u8, c_uint, c_uint) -> c_uint;

/// What is used of the library, which stays loaded.
struct Libpcap {
    open_dead: OpenDead,
    close: Close,
    compile: Compile,
    free_code: FreeCode,
    get_err: GetErr,
    filter: Filter,
    /// Before 1.8, it compiles one at a time.
    one: Mutex<()>,
    _library: Library,
}

impl Libpcap {
    /// Loads it the first time.
    fn load() -> &'static Result<Libpcap, ExpressionError> {
        static LOADED: OnceLock<Result<Libpcap, ExpressionError>> = OnceLock::new();
        LOADED.get_or_init(|| Libpcap::find(&NAMES).map_err(ExpressionError::NoLibpcap))
    }

    /// The first of these that there is.
    fn find(names: &[&str]) -> Result<Libpcap, String> {
        let mut last = String::new();
        for name in names {
            // SAFETY: what libpcap does when it is loaded needs nothing of us.
            match unsafe { Library::new(*name) } {
                Ok(library) => return Libpcap::of(library).map_err(|error| said(&error)),
                Err(error) => last = said(&error),
            }
        }
        Err(last)
    }

    fn of(library: Library) -> Result<Libpcap, libloading::Error> {
        // SAFETY: these are the types of pcap/pcap.h and pcap/bpf.h, which are the same in all versions
        // of these names; the functions stay as long as the library, which stays as long as they do.
        unsafe {
            Ok(Libpcap {
                open_dead: *library.get::<OpenDead>(b"pcap_open_dead\0")?,
                close: *library.get::<Close>(b"pcap_close\0")?,
                compile: *library.get::<Compile>(b"pcap_compile\0")?,
                free_code: *library.get::<FreeCode>(b"pcap_freecode\0")?,
                get_err: *library.get::<GetErr>(b"pcap_geterr\0")?,
                filter: *library.get::<Filter>(b"bpf_filter\0")?,
                one: Mutex::new(()),
                _library: library,
            })
        }
    }

    /// libpcap goes through an expression by recursion, for which a thread has too little memory, and
    /// takes very long for many alternatives. If that is too long, the thread is left to itself.
    fn compile(
        &'static self,
        text: &str,
        limit: Duration,
    ) -> Result<Vec<sock_filter>, ExpressionError> {
        const STACK: usize = 256 << 20;
        if text.len() > LONGEST {
            let why = format!("it has {} bytes (expected at most {LONGEST})", text.len());
            return Err(ExpressionError::Wrong(why));
        }
        let (text, (done, compiled)) = (text.to_owned(), mpsc::channel());
        let compile = move || drop(done.send(self.compile_here(&text)));
        let thread = thread::Builder::new().name("libpcap".into()).stack_size(STACK);
        let none = |error| ExpressionError::Host(format!("no thread to compile it in: {error}"));
        thread.spawn(compile).map_err(none)?;
        compiled.recv_timeout(limit).map_err(|_| ExpressionError::Slow(limit))?
    }

    fn compile_here(&self, text: &str) -> Result<Vec<sock_filter>, ExpressionError> {
        const ETHERNET: c_int = 1;
        const MOST: c_int = 262_144;
        const OPTIMIZED: c_int = 1;
        /// `PCAP_NETMASK_UNKNOWN`
        const NO_NETMASK: u32 = u32::MAX;
        let text = CString::new(text)
            .map_err(|_| ExpressionError::Wrong("a NUL character is in it".into()))?;
        let _one = self.one.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: it takes two numbers.
        let handle = NonNull::new(unsafe { (self.open_dead)(ETHERNET, MOST) });
        let none = || ExpressionError::Host("libpcap has no memory".into());
        let handle = handle.ok_or_else(none)?.as_ptr();
        let mut made = Compiled { len: 0, steps: ptr::null_mut() };
        // SAFETY: the handle is there until it is closed below, and used by nobody else; `made` and the
        // text live as long as the call.
        let failed =
            unsafe { (self.compile)(handle, &mut made, text.as_ptr(), OPTIMIZED, NO_NETMASK) } != 0;
        let result = if failed {
            // SAFETY: libpcap keeps a text in the handle, which ends with NUL.
            let said = unsafe { CStr::from_ptr((self.get_err)(handle)) };
            let said = said.to_string_lossy().into_owned();
            // It asks the system for the addresses of names.
            match said.starts_with("unknown host") || said.starts_with("unknown network") {
                true => Err(ExpressionError::Host(said)),
                false => Err(ExpressionError::Wrong(said)),
            }
        } else {
            // SAFETY: it has made so many steps, which are as the kernel has them.
            let steps = unsafe { slice::from_raw_parts(made.steps, made.len as usize) }.to_vec();
            // SAFETY: libpcap made it, and nobody reads it any more.
            unsafe { (self.free_code)(&mut made) };
            Ok(steps)
        };
        // SAFETY: it is open, and not used any more.
        unsafe { (self.close)(handle) };
        result
    }

    fn matches(&self, steps: &[sock_filter], bytes: &[u8], len: usize) -> bool {
        let clamp = |length: usize| c_uint::try_from(length).unwrap_or(c_uint::MAX);
        // SAFETY: libpcap made these steps, so that they end; it reads the packet as far as the second
        // length says.
        unsafe {
            (self.filter)(steps.as_ptr(), bytes.as_ptr(), clamp(len), clamp(bytes.len())) != 0
        }
    }
}

/// What the loader says, of which libloading says only that it failed.
fn said(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

//! Loading the programs of a skeleton, or of an object without one.

use std::cell::RefCell;
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Once;
use std::{fmt, io};

use libbpf_rs::{MapCore as _, ObjectBuilder, OpenObject, PrintLevel, set_print};

use crate::map::io_error;
use crate::{Map, Program};

/// Why programs were not loaded. Its alternate form (`{:#}`) has the causes and, where the verifier
/// refused a program, all that it said.
#[derive(Debug)]
pub struct Error {
    source: libbpf_rs::Error,
    log: String,
}

/// A loaded object without a skeleton; its parts are known by their names.
#[derive(Debug)]
pub struct Object(libbpf_rs::Object);

/// Has `load` open a skeleton in the place that it is given, load it, and take out what outlives it:
/// [`Program`](crate::Program)s and [`Map`](crate::Map)s.
///
/// # Errors
/// Those of `load`, which are those of libbpf and of the kernel.
pub fn load<T>(
    load: impl FnOnce(&mut MaybeUninit<OpenObject>) -> libbpf_rs::Result<T>,
) -> Result<T, Error> {
    listened(|| load(&mut MaybeUninit::uninit()))
}

impl Object {
    /// Loads an object as it is.
    ///
    /// # Errors
    /// Those of libbpf and of the kernel.
    pub fn load(object: &[u8]) -> Result<Object, Error> {
        listened(|| ObjectBuilder::default().open_memory(object)?.load().map(Object))
    }

    /// One of its maps.
    ///
    /// # Errors
    /// `NotFound`, and what the system reports.
    pub fn map(&self, name: &str) -> io::Result<Map> {
        let map = self.0.maps().find(|map| map.name() == name).ok_or(io::ErrorKind::NotFound)?;
        Map::of(&map).map_err(io_error)
    }

    /// One of its programs.
    ///
    /// # Errors
    /// As [`map`](Object::map).
    pub fn program(&self, name: &str) -> io::Result<Program> {
        let program = self.0.progs().find(|program| program.name() == name);
        Program::of(&program.ok_or(io::ErrorKind::NotFound)?)
    }

    /// Has one of its programs run for the sockets of a map.
    ///
    /// # Errors
    /// As [`map`](Object::map).
    pub fn attach_sockmap(&self, program: &str, map: &Map) -> io::Result<()> {
        let program = self.0.progs_mut().find(|found| found.name() == program);
        let program = program.ok_or(io::ErrorKind::NotFound)?;
        program.attach_sockmap(map.as_fd().as_raw_fd()).map_err(io_error)
    }
}

thread_local! {
    /// What libbpf says on this thread while it loads something.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Does this with what libbpf says of it kept for the error.
fn listened<T>(load: impl FnOnce() -> libbpf_rs::Result<T>) -> Result<T, Error> {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| {
        set_print(Some((PrintLevel::Info, listen)));
    });
    SAID.set(Some(String::new()));
    let loaded = load();
    let log = SAID.take().unwrap_or_default();
    loaded.map_err(|source| Error { source, log })
}

fn listen(_: PrintLevel, message: String) {
    SAID.with_borrow_mut(|said| match said {
        Some(said) => said.push_str(&message),
        // Where nobody reads stderr, nobody is told; a panic would go through C.
        None => drop(std::io::stderr().write_all(message.as_bytes())),
    });
}

impl Error {
    /// Whether the caller may not, rather than the kernel cannot.
    pub fn is_permission(&self) -> bool {
        self.source.kind() == libbpf_rs::ErrorKind::PermissionDenied
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.source, f)?;
        // Without the verifier's log what libbpf says is what the error says.
        if f.alternate() && self.log.contains("BEGIN PROG LOAD LOG") {
            write!(f, "\n{}", self.log.trim_end())?;
        }
        Ok(())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match error.is_permission() {
            true => io::ErrorKind::PermissionDenied,
            false => io::ErrorKind::Other,
        };
        io::Error::new(kind, format!("{error:#}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_verifiers_log_and_no_other() {
        for (message, kept) in [
            ("libbpf: prog 'p': -- BEGIN PROG LOAD LOG --\nR0 !read_ok\n", true),
            ("libbpf: Error in bpf_object__probe_loading(): EPERM", false),
        ] {
            let refused = listened(|| -> libbpf_rs::Result<()> {
                listen(PrintLevel::Warn, message.to_owned());
                Err(io::Error::from(io::ErrorKind::PermissionDenied).into())
            });
            let error = refused.expect_err("it fails");
            assert!(error.is_permission());
            assert_eq!(format!("{error:#}").contains(message.trim_end()), kept, "{error:#}");
            assert!(!error.to_string().contains("libbpf"), "{error}");
        }
    }
}

//! A test host: an anonymous network namespace held by one thread.
//!
//! The thread unshares its network namespace when the host is made and lives as long as the
//! host. It starts the host's programs, so that they are born inside the namespace and die with
//! the thread. Closures run on threads that enter the namespace through a descriptor of it.
//! Nothing is bound to a name in the file system: the kernel removes the namespace, and every
//! device in it, when its last thread, process, socket and descriptor are gone.

use std::{
    ffi::OsStr,
    fmt,
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    panic,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::{Command, Error, ErrorKind, Result};

/// A test host. Clones are handles of the same host, which lasts until its lab and all handles
/// are dropped.
#[derive(Clone, Debug)]
pub struct Host {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    /// The namespace; none for [`Host::here`].
    namespace: Option<OwnedFd>,
    executor: Executor,
    /// How many `ethN` devices were made here.
    devices: AtomicU32,
}

type Job = Box<dyn FnOnce() + Send>;

/// The thread that starts the host's programs; it ends when `jobs` is dropped.
#[derive(Debug)]
struct Executor {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Host {
    /// The network namespace that this process is in, as a host.
    ///
    /// Needs no privilege, so that drivers and programs run on loopback without a lab. It
    /// cannot be changed: links and sysctls are refused.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if no thread can be started.
    pub fn here() -> Result<Self> {
        let (executor, ()) = Executor::start("here", || Ok(()))?;
        Ok(Self::with("here", None, executor))
    }

    /// A new host with its loopback device up.
    ///
    /// Its local port range is 10000 to 65535 and it reuses ports in TIME_WAIT for outgoing
    /// connections after a second, so that many short connections do not run out of ports.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let (executor, namespace) = Executor::start(name, unshare)?;
        let host = Self::with(name, Some(namespace), executor);
        host.ip(["link", "set", "lo", "up"])?;
        host.set_sysctl("net.ipv4.ip_local_port_range", "10000 65535")?;
        host.set_sysctl("net.ipv4.tcp_tw_reuse", "1")?;
        Ok(host)
    }

    fn with(name: &str, namespace: Option<OwnedFd>, executor: Executor) -> Self {
        let devices = AtomicU32::new(0);
        Self { inner: Arc::new(Inner { name: name.into(), namespace, executor, devices }) }
    }

    /// The name given when the host was made.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// A path by which programs run by this process or as root can open the namespace, while
    /// the host lives. None for [`Host::here`].
    pub fn namespace_path(&self) -> Option<PathBuf> {
        let fd = self.inner.namespace.as_ref()?.as_raw_fd();
        Some(format!("/proc/{}/fd/{fd}", std::process::id()).into())
    }

    /// Runs `work` inside the host, on a thread of its own, and returns its result. A panic in
    /// `work` goes on in the caller.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the thread cannot be started or cannot enter the host.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        thread::scope(|scope| {
            let thread = thread::Builder::new()
                .name(format!("{}-run", self.name()))
                .spawn_scoped(scope, || self.enter().map(|()| work()))
                .map_err(|error| self.cannot_start(error))?;
            thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
        })
    }

    /// Starts a thread inside the host.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the thread cannot be started or cannot enter the host.
    pub fn spawn_thread<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<thread::JoinHandle<T>> {
        self.spawn_after(name, || Ok(()), work)
    }

    /// [`spawn_thread`](Self::spawn_thread) of one that does `first` before this returns, whose
    /// error is the caller's.
    pub(crate) fn spawn_after<T: Send + 'static>(
        &self,
        name: &str,
        first: impl FnOnce() -> Result<()> + Send + 'static,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<thread::JoinHandle<T>> {
        let (entered_tx, entered) = mpsc::sync_channel(1);
        let host = self.clone();
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                let result = host.enter().and_then(|()| first());
                // Held longer, this thread could be the one that ends the host.
                drop(host);
                let entered = result.is_ok();
                // The spawner waits for exactly this.
                let _ = entered_tx.send(result);
                if !entered {
                    // Ends the thread without a message: the spawner has the error.
                    panic::resume_unwind(Box::new(()));
                }
                work()
            })
            .map_err(|error| self.cannot_start(error))?;
        let entered = entered.recv();
        entered.unwrap_or_else(|_| Err(self.cannot_start(io::ErrorKind::Other.into())))?;
        Ok(thread)
    }

    /// A program to run inside the host, searched for on `PATH` and in the `sbin` folders.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Command::new(self.clone(), program.as_ref())
    }

    /// Runs `ip` with these arguments inside the host and returns what it prints.
    ///
    /// # Errors
    /// As [`Command::run`]; [`ErrorKind::Invalid`] for [`Host::here`].
    pub fn ip<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Result<String> {
        self.refuse_here("ip")?;
        self.command("ip").args(args).run()
    }

    /// Sets a sysctl of the host's namespace, named like `net.ipv4.ip_forward`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for one outside `net.` (it would be the whole machine's) and for
    /// [`Host::here`]; [`ErrorKind::Io`] if the namespace has none of that name or refuses the
    /// value.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.refuse_here("sysctl")?;
        let path = sysctl_path(name)?;
        self.run(|| fs::write(&path, value))?
            .map_err(|error| Error::io(format!("{}: {name} = {value}", self.name()), error))
    }

    /// Reads a sysctl of the host's namespace.
    ///
    /// # Errors
    /// As [`set_sysctl`](Self::set_sysctl).
    pub fn sysctl(&self, name: &str) -> Result<String> {
        let path = sysctl_path(name)?;
        let text = self
            .run(|| fs::read_to_string(&path))?
            .map_err(|error| Error::io(format!("{}: {name}", self.name()), error))?;
        Ok(text.trim().to_owned())
    }

    /// Starts `work` on the host's long-lived thread and waits for it. For short work only.
    pub(crate) fn on_executor<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.inner.executor.call(work)
    }

    pub(crate) fn next_device(&self) -> String {
        // Relaxed: a counter on its own.
        format!("eth{}", self.inner.devices.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn refuse_here(&self, what: &str) -> Result<()> {
        match self.inner.namespace {
            Some(_) => Ok(()),
            None => Err(Error::invalid(format!(
                "{what}: this would change the network of the machine itself, not of a test host"
            ))),
        }
    }

    /// Moves the calling thread into the host.
    fn enter(&self) -> Result<()> {
        let Some(namespace) = &self.inner.namespace else { return Ok(()) };
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| Error::io(format!("cannot enter the host {}", self.name()), error))
    }

    fn cannot_start(&self, error: io::Error) -> Error {
        Error::io(format!("cannot start a thread in the host {}", self.name()), error)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Executor {
    /// Starts the thread, runs `first` on it and then the jobs as they come.
    fn start<T: Send + 'static>(
        name: &str,
        first: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<(Self, T)> {
        let (started_tx, started) = mpsc::sync_channel(1);
        let (jobs, queue) = mpsc::channel::<Job>();
        let thread = thread::Builder::new()
            .name(format!("{name}-host"))
            .spawn(move || {
                // The starter waits for exactly this.
                let _ = started_tx.send(first());
                queue.into_iter().for_each(|job| job());
            })
            .map_err(|error| Error::io(format!("cannot start the host {name}"), error))?;
        let executor = Self { jobs: Some(jobs), thread: Some(thread) };
        let first = started.recv().unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Io, format!("the thread of the host {name} died")))
        })?;
        Ok((executor, first))
    }

    fn call<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (result_tx, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            // The caller waits for exactly this.
            let _ = result_tx.send(work());
        });
        let jobs = self.jobs.as_ref().expect("taken only by drop");
        jobs.send(job)
            .ok()
            .and_then(|()| result.recv().ok())
            .expect("jobs do not panic, so the thread lives")
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked, and a drop could not say so.
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread a network namespace of its own and returns a descriptor of it.
fn unshare() -> Result<OwnedFd> {
    // Deprecated for what it does with `UnshareFlags::FILES`, which is not passed; its
    // replacement is an unsafe function.
    #[allow(deprecated)]
    let result = rustix::thread::unshare(UnshareFlags::NEWNET);
    result.map_err(|error| match error {
        rustix::io::Errno::PERM => Error::new(
            ErrorKind::NotPermitted,
            "a test host is a network namespace, and making one needs root (CAP_SYS_ADMIN)",
        ),
        error => Error::io("cannot make a network namespace", error),
    })?;
    let path = "/proc/thread-self/ns/net";
    File::open(path).map(OwnedFd::from).map_err(|error| Error::io(path, error))
}

fn sysctl_path(name: &str) -> Result<PathBuf> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/".contains(&byte);
    if !name.starts_with("net.") || name.contains("..") || !name.bytes().all(valid) {
        return Err(Error::invalid(format!("{name}: expected the name of a sysctl under net.")));
    }
    Ok(format!("/proc/sys/{}", name.replace('.', "/")).into())
}

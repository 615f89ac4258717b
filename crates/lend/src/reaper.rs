//! The end of what a borrower had a hand in, on threads that nobody waits for.
//!
//! To close what another process shares takes as long as that process likes: who closes a socket
//! wakes all that wait at its other end, and drops what was sent to it; who drops the last handle
//! of a file does what its kind wants done at its end, and that can be to wait for ever. So nothing
//! of this is done by a thread that others wait for. [`Reaped`] has it done by a reaper, wherever
//! the last owner lets go.
//!
//! A job that hangs has a thread, and the others go on, up to [`WORKERS`]; beyond that they wait.
//! The threads are made when there is something to do.

use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use parking_lot::Mutex;

/// Threads at a time.
const WORKERS: usize = 32;

/// They do what strangers made for them to do, and leave the CPUs to those that have packets.
pub(crate) const NICENESS: i32 = 19;

/// Little is done on their stacks.
pub(crate) const STACK: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// Where jobs are left. Its threads end when there is no such place any more, and no job.
#[derive(Clone, Debug)]
pub(crate) struct Reaper {
    jobs: Sender<Job>,
    pending: Arc<AtomicUsize>,
}

impl Reaper {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (jobs, queue) = channel();
        let name = "lend-reaper".to_owned();
        thread::Builder::new().name(name).stack_size(STACK).spawn(|| hand_out(queue, start))?;
        Ok(Self { jobs, pending: Arc::default() })
    }

    /// Has something done, at some time. It does not wait, and takes no lock.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        // Relaxed: a number to compare with a limit.
        self.pending.fetch_add(1, Ordering::Relaxed);
        let pending = Arc::clone(&self.pending);
        // The thread that takes it ends after the last sender.
        let _ = self.jobs.send(Box::new(move || {
            job();
            pending.fetch_sub(1, Ordering::Relaxed);
        }));
    }

    /// Something whose end is the reaper's.
    pub(crate) fn keep<T: Send + 'static>(&self, what: T) -> Reaped<T> {
        Reaped { what: Some(what), reaper: self.clone() }
    }

    /// How much there is to do.
    pub(crate) fn pending(&self) -> usize {
        // Relaxed: as in `run`.
        self.pending.load(Ordering::Relaxed)
    }
}

/// What a reaper ends, whoever drops it.
#[derive(Debug)]
pub(crate) struct Reaped<T: Send + 'static> {
    what: Option<T>,
    reaper: Reaper,
}

impl<T: Send + 'static> Deref for Reaped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.what.as_ref().expect("it is there until it is dropped")
    }
}

impl<T: AsFd + Send + 'static> AsFd for Reaped<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: Send + 'static> Drop for Reaped<T> {
    fn drop(&mut self) {
        let what = self.what.take();
        self.reaper.run(move || drop(what));
    }
}

#[derive(Default)]
struct Crew {
    jobs: VecDeque<Job>,
    workers: usize,
}

/// Starts a thread that does jobs; false if the system has none.
fn start(crew: Arc<Mutex<Crew>>) -> bool {
    let worker = move || {
        // Of this thread alone. It is allowed to everybody.
        let _ = rustix::process::nice(NICENESS);
        work(&crew);
    };
    thread::Builder::new().name("lend-reap".into()).stack_size(STACK).spawn(worker).is_ok()
}

/// Gives each job to a thread. It does none itself unless there are no threads at all: while one is
/// there, a job that no new one can be had for waits for that.
fn hand_out(queue: Receiver<Job>, start: impl Fn(Arc<Mutex<Crew>>) -> bool) {
    let crew = Arc::new(Mutex::new(Crew::default()));
    for job in queue {
        let mut own = crew.lock();
        own.jobs.push_back(job);
        if own.workers == WORKERS {
            continue;
        }
        own.workers += 1;
        drop(own);
        if start(Arc::clone(&crew)) {
            continue;
        }
        let mut own = crew.lock();
        // Those that are there look for jobs before they end, under this lock.
        let is_alone = own.workers == 1;
        own.workers -= usize::from(!is_alone);
        drop(own);
        if is_alone {
            work(&crew);
        }
    }
}

fn work(crew: &Mutex<Crew>) {
    loop {
        let mut own = crew.lock();
        let Some(job) = own.jobs.pop_front() else {
            own.workers -= 1;
            return;
        };
        drop(own);
        job();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_job_that_hangs_delays_no_other_and_nobody_who_leaves_one() {
        let reaper = Reaper::new().unwrap();
        let (go_on, hung) = sync_channel::<()>(0);
        let hangs = reaper.keep(Slow(hung));
        drop(hangs);
        let (done, is_done) = channel();
        for number in 0..100 {
            let done = done.clone();
            reaper.run(move || done.send(number).unwrap());
        }
        for _ in 0..100 {
            is_done.recv_timeout(Duration::from_secs(20)).expect("the others are done");
        }
        assert!(reaper.pending() >= 1);
        drop((reaper, go_on));
    }

    #[test]
    fn where_no_threads_can_be_had_a_job_that_hangs_does_not_hang_who_hands_out() {
        let (jobs, queue) = channel::<Job>();
        let started = AtomicUsize::new(0);
        // One thread, and no more.
        let one = move |crew| started.fetch_add(1, Ordering::Relaxed) == 0 && start(crew);
        let handing = thread::spawn(|| hand_out(queue, one));
        let (go_on, hung) = sync_channel::<()>(0);
        let (done, is_done) = channel();
        let (hangs, after) = (done.clone(), done);
        jobs.send(Box::new(move || {
            hangs.send(thread::current().name().map(str::to_owned)).unwrap();
            let _ = hung.recv();
        }))
        .unwrap();
        let first = is_done.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(first.as_deref(), Some("lend-reap"));
        jobs.send(Box::new(move || {
            after.send(thread::current().name().map(str::to_owned)).unwrap();
        }))
        .unwrap();
        // Whoever hands out is done with that, and does not wait for the job.
        drop(jobs);
        handing.join().unwrap();
        assert!(is_done.try_recv().is_err());
        drop(go_on);
        let second = is_done.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(second.as_deref(), Some("lend-reap"));
    }

    #[test]
    fn without_any_thread_jobs_are_done_by_who_hands_them_out() {
        let (jobs, queue) = channel::<Job>();
        let handing = thread::spawn(|| hand_out(queue, |_| false));
        let (done, is_done) = channel();
        for number in 0..3 {
            let done = done.clone();
            jobs.send(Box::new(move || done.send(number).unwrap())).unwrap();
        }
        drop((jobs, done));
        handing.join().unwrap();
        assert_eq!(is_done.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    struct Slow(Receiver<()>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }
}

//! Tests that run a part of themselves in a process of its own, to kill or to stop it.

use std::env;
use std::process::Command;

/// What such a process is told by.
const WORK: &str = "CACHELANE_TEST_CHILD";

/// This test program as a process that runs the test of this name alone, with an argument.
pub(crate) fn child(test: &str, argument: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(WORK, format!("{test}:{argument}"));
    command
}

/// The argument of the child that the test of this name is to be; none in an ordinary test run.
pub(crate) fn work_of_child(test: &str) -> Option<String> {
    let work = env::var(WORK).ok()?;
    work.strip_prefix(test)?.strip_prefix(':').map(str::to_owned)
}

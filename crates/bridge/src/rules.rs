//! What the packet path may believe of netfilter: the hooks and settings that stood there while the
//! process read them and found that they leave bridged packets alone.
//!
//! The packet path compares them with what the kernel has, packet by packet, and leaves the packet
//! to the kernel where they differ. So a rule takes effect with the packet that comes after it,
//! whenever the process gets to know of it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use crate::Result;
use crate::error::Context as _;
use crate::host::CALLS;
use crate::program::{Program, RULES, Rules};

/// A reading of the host's rules that is under way.
#[derive(Debug)]
pub(crate) struct Reading {
    before: Rules,
    calls: [Option<File>; 3],
}

impl Reading {
    /// Begins one: what the host is asked for after this is read within it.
    pub(crate) fn begin(program: &Program) -> Result<Reading> {
        // Where there is no br_netfilter, they are not there.
        let open = |path| match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        };
        let [iptables, ip6tables, arptables] = CALLS.map(open);
        let calls =
            [iptables.context(RULES)?, ip6tables.context(RULES)?, arptables.context(RULES)?];
        Ok(Reading { before: observe(program, &calls)?, calls })
    }

    /// Ends it: what held all the time; none if something changed meanwhile.
    pub(crate) fn end(self, program: &Program) -> Result<Option<Rules>> {
        let after = observe(program, &self.calls)?;
        Ok((after == self.before).then_some(after))
    }
}

fn observe(program: &Program, calls: &[Option<File>; 3]) -> Result<Rules> {
    let fd = |file: &Option<File>| file.as_ref().map_or(0, |file| file.as_raw_fd().cast_unsigned());
    program.rules(calls.each_ref().map(fd))
}

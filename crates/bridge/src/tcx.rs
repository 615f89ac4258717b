//! What the fast path needs of tcx.

use bpf::tcx::{Hook, programs};
use rustix::io::Errno;

use crate::{Error, ErrorKind, Result};

/// Asks the kernel something harmless that needs tcx.
///
/// # Errors
/// [`ErrorKind::Unsupported`] on kernels without tcx; [`ErrorKind::Io`].
pub(crate) fn needed(index: u32) -> Result<()> {
    match programs(index, Hook::Ingress) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            let message = "this kernel has no tcx (Linux 6.6 or later is needed)";
            Err(Error::new(ErrorKind::Unsupported, message))
        }
        Err(error) => Err(Error::io("cannot ask for tcx programs", error)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use bpf::{Link, Object};
    use lab::Lab;

    use crate::program::{Owner, Program};

    /// A program that does nothing but return this.
    pub(crate) fn returning(lab: &Lab, verdict: i32) -> bpf::Program {
        let (source, object) = (lab.dir().join("returns.c"), lab.dir().join("returns.o"));
        let text = format!(
            "__attribute__((section(\"tc\"), used)) int returns(void *c) {{ return {verdict}; }}\n"
        );
        std::fs::write(&source, text).expect("a file in the lab's folder");
        let mut clang = std::process::Command::new("clang");
        clang.args(["-target", "bpf", "-g", "-O2", "-c", "-o"]).arg(&object).arg(&source);
        assert!(clang.status().expect("clang, which builds this crate").success());
        let object = Object::load(&std::fs::read(&object).expect("it was just built"));
        object.expect("it loads").program("returns").expect("it is there")
    }

    /// Fills a device's ingress with programs, until they are dropped.
    pub(crate) fn fill(index: u32) -> Vec<(Program, Link)> {
        let mut there = Vec::new();
        loop {
            let program = Program::load(8, Owner::default()).expect("it loads");
            match program.attach(index) {
                Ok(link) => there.push((program, link)),
                Err(error) => {
                    let full = rustix::io::Errno::RANGE.raw_os_error();
                    assert_eq!(error.raw_os_error(), Some(full));
                    return there;
                }
            }
        }
    }
}

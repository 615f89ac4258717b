//! Whether the kernel is as new as cachelane needs it.

use std::{fmt, fs};

use crate::tcx::{self, Hook};

/// The oldest kernel that has all that cachelane uses: major and minor version. The last of it to come
/// were tcx links.
pub const OLDEST: (u32, u32) = (6, 6);

/// The kernel is too old: what is missing, the version that is needed and the one that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooOld {
    missing: String,
    release: String,
}

/// Refuses a kernel that is older than [`OLDEST`], for the lack of what is `missing` there, such as "tcx
/// links". Distributions bring newer BPF to older kernels, with all that came before it: so a kernel that
/// has tcx will do, whatever its version says.
///
/// A caller that may not ask is not refused: what it does next tells it what it may not.
///
/// # Errors
/// [`TooOld`].
pub fn expect(missing: &str) -> Result<(), TooOld> {
    /// The index of `lo`, in any network namespace.
    const LOOPBACK: u32 = 1;

    let asked = tcx::programs(LOOPBACK, Hook::Ingress);
    let has_tcx = !asked.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    judge(missing, has_tcx, release.trim())
}

fn judge(missing: &str, has_tcx: bool, release: &str) -> Result<(), TooOld> {
    // One that is new enough and built without tcx has the rest.
    let is_new = version(release).is_none_or(|version| version >= OLDEST);
    if has_tcx || is_new {
        return Ok(());
    }
    Err(TooOld { missing: missing.into(), release: release.into() })
}

/// Of what `uname -r` prints, such as `6.1.0-50-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-', '+', '_']).map(|part| part.parse().ok());
    numbers.next().flatten().zip(numbers.next().flatten())
}

impl fmt::Display for TooOld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (TooOld { missing, release }, (major, minor)) = (self, OLDEST);
        write!(
            f,
            "this is Linux {release}, which has no {missing}; expected Linux {major}.{minor} or newer"
        )
    }
}

impl std::error::Error for TooOld {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_refused_if_it_is_older_and_has_no_newer_bpf() {
        for (has_tcx, release, refused) in [
            (false, "6.1.0-50-amd64", true),
            (false, "6.5", true),
            (false, "5.14.0-570.el9.x86_64", true),
            // With newer BPF than its version says.
            (true, "5.14.0-570.el9.x86_64", false),
            // New, and built without.
            (false, "6.6.1", false),
            (false, "6.12.0+deb13-amd64", false),
            (true, "7.0-rc1", false),
            // Not to be read.
            (false, "", false),
            (false, "six.one", false),
        ] {
            assert_eq!(judge("x", has_tcx, release).is_err(), refused, "{has_tcx} {release:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named_with_both_versions() {
        let refused = judge("tcx links", false, "6.1.0-50-amd64").expect_err("it is too old");
        assert_eq!(
            refused.to_string(),
            "this is Linux 6.1.0-50-amd64, which has no tcx links; expected Linux 6.6 or newer"
        );
    }

    #[test]
    fn this_kernel_is_new_enough_or_says_what_it_is() {
        if let Err(refused) = expect("tcx links") {
            let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a version");
            assert!(version(release.trim()) < Some(OLDEST), "{refused}");
        }
    }
}

//! How the command ends, as its exit status says it.

use std::fmt;
use std::process::ExitCode;

/// The exit codes of every subcommand. Never `Ok` on failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All went well.
    Ok = 0,
    /// Something failed, or there are findings.
    Failed = 1,
    /// The command line cannot be understood, or a value in it cannot be used.
    Usage = 2,
    /// This host lacks what is needed.
    HostCannot = 3,
    /// This user may not.
    NotPermitted = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// An error in what the user gave, which no crate below can see.
pub(crate) fn usage(message: String) -> anyhow::Error {
    BadInput(message).into()
}

/// An error in what this host is or has, which no crate below calls one.
pub(crate) fn host_cannot(message: String) -> anyhow::Error {
    Refused(message).into()
}

/// An error in what this user may do, found before the system was asked.
pub(crate) fn not_permitted(message: String) -> anyhow::Error {
    Denied(message).into()
}

#[derive(Debug)]
struct BadInput(String);

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

#[derive(Debug)]
struct Denied(String);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Denied {}

impl Exit {
    /// The exit code that an error stands for, by the kinds of our own crates' errors in it.
    pub(crate) fn of(error: &anyhow::Error) -> Exit {
        error.chain().find_map(Exit::of_cause).unwrap_or(Exit::Failed)
    }

    fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
        #[cfg(feature = "measure")]
        if let Some(error) = cause.downcast_ref::<lab::Error>() {
            return Some(Exit::of_lab(error.kind()));
        }
        None.or_else(|| cause.downcast_ref().map(|e: &relay::Error| Exit::of_relay(e.kind())))
            .or_else(|| cause.downcast_ref().map(|e: &bridge::Error| Exit::of_bridge(e.kind())))
            .or_else(|| cause.downcast_ref().map(|e: &steer::Error| Exit::of_steer(e.kind())))
            .or_else(|| cause.downcast_ref().map(|e: &knobs::Error| Exit::of_knobs(e.kind())))
            .or_else(|| cause.downcast_ref().map(|e: &xsk::Error| Exit::of_xsk(e.kind())))
            .or_else(|| cause.downcast_ref().map(|e: &lend::Error| Exit::of_lend(e.kind())))
            .or_else(|| cause.downcast_ref().map(|e: &frames::Error| Exit::of_frames(e.kind())))
            .or_else(|| cause.downcast_ref().map(|_: &BadInput| Exit::Usage))
            .or_else(|| cause.downcast_ref().map(|_: &Refused| Exit::HostCannot))
            .or_else(|| cause.downcast_ref().map(|_: &Denied| Exit::NotPermitted))
            // What a CPU set or a lane override says is always the user's input.
            .or_else(|| cause.downcast_ref().map(|_: &lanes::Error| Exit::Usage))
    }

    fn of_relay(kind: relay::ErrorKind) -> Exit {
        match kind {
            relay::ErrorKind::InvalidInput => Exit::Usage,
            relay::ErrorKind::PermissionDenied => Exit::NotPermitted,
            relay::ErrorKind::Unsupported | relay::ErrorKind::FileLimit => Exit::HostCannot,
            _ => Exit::Failed,
        }
    }

    fn of_bridge(kind: bridge::ErrorKind) -> Exit {
        match kind {
            bridge::ErrorKind::NoDevice
            | bridge::ErrorKind::NotABridge
            | bridge::ErrorKind::Invalid => Exit::Usage,
            bridge::ErrorKind::NotPermitted => Exit::NotPermitted,
            bridge::ErrorKind::Unsupported => Exit::HostCannot,
            _ => Exit::Failed,
        }
    }

    fn of_steer(kind: steer::ErrorKind) -> Exit {
        match kind {
            steer::ErrorKind::NoDevice | steer::ErrorKind::Invalid => Exit::Usage,
            // A program that is there is a refusal, as the other things that stand against it.
            steer::ErrorKind::NoXdp
            | steer::ErrorKind::ProgramPresent
            | steer::ErrorKind::Unsupported => Exit::HostCannot,
            steer::ErrorKind::NotPermitted => Exit::NotPermitted,
            _ => Exit::Failed,
        }
    }

    fn of_knobs(kind: knobs::ErrorKind) -> Exit {
        match kind {
            knobs::ErrorKind::BadValue | knobs::ErrorKind::UnknownKnob => Exit::Usage,
            knobs::ErrorKind::NotPermitted => Exit::NotPermitted,
            _ => Exit::Failed,
        }
    }

    fn of_xsk(kind: xsk::ErrorKind) -> Exit {
        match kind {
            xsk::ErrorKind::NoDevice
            | xsk::ErrorKind::NoQueue
            | xsk::ErrorKind::FrameTooSmall
            | xsk::ErrorKind::Invalid => Exit::Usage,
            xsk::ErrorKind::NoXdp | xsk::ErrorKind::MemlockLimit | xsk::ErrorKind::Unsupported => {
                Exit::HostCannot
            }
            xsk::ErrorKind::NotPermitted => Exit::NotPermitted,
            _ => Exit::Failed,
        }
    }

    fn of_lend(kind: lend::ErrorKind) -> Exit {
        match kind {
            lend::ErrorKind::Invalid => Exit::Usage,
            lend::ErrorKind::NotPermitted => Exit::NotPermitted,
            _ => Exit::Failed,
        }
    }

    fn of_frames(kind: frames::ErrorKind) -> Exit {
        match kind {
            frames::ErrorKind::Invalid => Exit::Usage,
            frames::ErrorKind::Memory => Exit::HostCannot,
            _ => Exit::Failed,
        }
    }

    #[cfg(feature = "measure")]
    fn of_lab(kind: lab::ErrorKind) -> Exit {
        match kind {
            lab::ErrorKind::Invalid => Exit::Usage,
            lab::ErrorKind::Missing { .. } => Exit::HostCannot,
            lab::ErrorKind::NotPermitted => Exit::NotPermitted,
            _ => Exit::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "measure")]
    #[test]
    fn an_error_of_the_lab_gives_its_exit_code_through_any_context() {
        let refused = lab::Lab::new("no such name").map(drop).unwrap_err();
        let refused = anyhow::Error::from(refused).context("the demo");
        assert_eq!(Exit::of(&refused), Exit::Usage);
        let here = lab::Host::here().unwrap();
        let missing = here.command("no-such-program-here").run().unwrap_err();
        assert_eq!(Exit::of(&missing.into()), Exit::HostCannot);
    }

    #[test]
    fn an_error_of_ours_gives_its_exit_code() {
        let cpus = "x".parse::<lanes::CpuSet>().unwrap_err();
        assert_eq!(Exit::of(&cpus.into()), Exit::Usage);
        assert_eq!(Exit::of(&usage("no such thing".into())), Exit::Usage);
        assert_eq!(Exit::of(&host_cannot("no such driver".into())), Exit::HostCannot);
        assert_eq!(Exit::of(&not_permitted("needs root".into())), Exit::NotPermitted);
        assert_eq!(Exit::of(&anyhow::anyhow!("anything else")), Exit::Failed);
    }
}

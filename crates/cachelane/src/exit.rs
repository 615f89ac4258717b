//! How the command ends, as its exit status says it.

use std::process::ExitCode;

use kit::{Class, class_of};

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
    /// A trial cannot tell.
    Inconclusive = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

kit::error! {
    /// What the command itself finds, and no crate below can see.
    pub(crate) enum ErrorKind {
        /// What the user gave cannot be used.
        Usage => BadInput,
        /// What this host is or has does not do.
        HostCannot => HostCannot,
        /// This user may not, found before the system was asked.
        NotPermitted => NotPermitted,
    }
}

/// An error in what the user gave, which no crate below can see.
pub(crate) fn usage(message: String) -> anyhow::Error {
    Error::new(ErrorKind::Usage, message).into()
}

/// An error in what this host is or has, which no crate below calls one.
pub(crate) fn host_cannot(message: String) -> anyhow::Error {
    Error::new(ErrorKind::HostCannot, message).into()
}

/// An error in what this user may do, found before the system was asked.
pub(crate) fn not_permitted(message: String) -> anyhow::Error {
    Error::new(ErrorKind::NotPermitted, message).into()
}

/// A cause's class, if it is of the one crate that the function is for.
type ClassOf = fn(&(dyn std::error::Error + 'static)) -> Option<Class>;

/// The crates whose errors have classes.
const OURS: &[ClassOf] = &[
    class_of::<Error>,
    class_of::<bridge::Error>,
    class_of::<doctor::Error>,
    class_of::<frames::Error>,
    class_of::<knobs::Error>,
    #[cfg(feature = "measure")]
    class_of::<lab::Error>,
    class_of::<lanes::Error>,
    class_of::<lend::Error>,
    class_of::<relay::Error>,
    class_of::<sources::Error>,
    class_of::<steer::Error>,
    class_of::<trial::Error>,
    class_of::<xsk::Error>,
];

impl Exit {
    /// The exit code that an error stands for: the first class in it that says more than that it
    /// failed.
    pub(crate) fn of(error: &anyhow::Error) -> Exit {
        let mut classes = error.chain().filter_map(|cause| OURS.iter().find_map(|of| of(cause)));
        classes.find(|class| *class != Class::Failed).map_or(Exit::Failed, Exit::from)
    }
}

impl From<Class> for Exit {
    fn from(class: Class) -> Exit {
        match class {
            Class::BadInput => Exit::Usage,
            Class::HostCannot => Exit::HostCannot,
            Class::NotPermitted => Exit::NotPermitted,
            Class::Failed => Exit::Failed,
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

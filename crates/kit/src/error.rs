use std::error::Error;

/// Whose matter an error is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The caller gave a value that cannot be used.
    BadInput,
    /// The caller may not.
    NotPermitted,
    /// This host lacks what is needed.
    HostCannot,
    /// It was tried, and failed.
    Failed,
}

/// An error whose kinds have classes, as [`error!`](crate::error!) declares them.
pub trait Classed: Error {
    /// The class of its kind.
    fn class(&self) -> Class;
}

/// The class of `cause` if it is an `E`.
pub fn class_of<E: Classed + 'static>(cause: &(dyn Error + 'static)) -> Option<Class> {
    cause.downcast_ref().map(E::class)
}

/// Declares a crate's `Error`, its kinds, each with its [`Class`], and its `Result`.
///
/// The crate makes errors with `Error::new(kind, message)`, and with
/// `Error::caused(kind, message, source)` where the system said why. `io: |source| …` picks a kind
/// by what the system said, and adds `Error::io(message, source)`, and to results of the system
/// `context(message)`; without `: |source| …` it picks `NotPermitted` or `Io`. `also name: Type`
/// adds a field that is its type's default unless the crate sets it.
#[macro_export]
macro_rules! error {
    (@io $kind:ident $io:expr) => { $io };
    (@io $kind:ident) => {
        |source| match source.kind() {
            std::io::ErrorKind::PermissionDenied => $kind::NotPermitted,
            _ => $kind::Io,
        }
    };
    (@context) => {};
    (@context io $(: $io:expr)?) => {
        /// What a system call was for, where it failed.
        pub(crate) trait Context<T> {
            #[allow(dead_code, reason = "not every crate uses it")]
            fn context(self, message: impl std::fmt::Display) -> Result<T>;
        }

        impl<T, E: Into<std::io::Error>> Context<T> for Result<T, E> {
            fn context(self, message: impl std::fmt::Display) -> Result<T> {
                self.map_err(|source| Error::io(message.to_string(), source))
            }
        }
    };
    (
        $(#[$about:meta])*
        $vis:vis enum $kind:ident {
            $( $(#[$meta:meta])* $variant:ident $({ $($field:tt)* })? => $class:ident, )+
        }
        $( io $(: $io:expr)?, )?
        $( also $also:ident: $type:ty, )?
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        $vis enum $kind {
            $( $(#[$meta])* $variant $({ $($field)* })?, )+
        }

        /// An error of this crate: what was being done to what, and why it failed.
        ///
        /// `Display` is one line, which ends with what the system said.
        #[derive(Debug)]
        $vis struct Error {
            kind: $kind,
            message: String,
            source: Option<Box<dyn std::error::Error + Send + Sync>>,
            $( $also: $type, )?
        }

        /// This crate's results.
        $vis type Result<T, E = Error> = std::result::Result<T, E>;

        impl Error {
            /// What sort of error it is.
            $vis fn kind(&self) -> $kind {
                self.kind
            }

            pub(crate) fn new(kind: $kind, message: impl Into<String>) -> Self {
                Self {
                    kind,
                    message: message.into(),
                    source: None,
                    $( $also: <$type>::default(), )?
                }
            }

            /// A failed system call whose meaning is known.
            pub(crate) fn caused(
                kind: $kind,
                message: impl Into<String>,
                source: impl Into<std::io::Error>,
            ) -> Self {
                Self { source: Some(Box::new(source.into())), ..Self::new(kind, message) }
            }

            $(
                /// A failed system call, in the middle of doing `message`.
                pub(crate) fn io(
                    message: impl Into<String>,
                    source: impl Into<std::io::Error>,
                ) -> Self {
                    let source = source.into();
                    let kind: fn(&std::io::Error) -> $kind = $crate::error!(@io $kind $($io)?);
                    Self::caused(kind(&source), message, source)
                }
            )?
        }

        $crate::error!(@context $( io $(: $io)? )?);

        impl $crate::Classed for Error {
            fn class(&self) -> $crate::Class {
                match self.kind {
                    $( $kind::$variant { .. } => $crate::Class::$class, )+
                }
            }
        }

        impl std::fmt::Display for Error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.message)?;
                match &self.source {
                    Some(source) => write!(f, ": {source}"),
                    None => Ok(()),
                }
            }
        }

        impl std::error::Error for Error {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                self.source.as_deref().map(|source| source as _)
            }
        }
    };
}

//! The control socket of a mechanism that runs.

use knobs::{Registry, Server};

/// Opens the control socket of this process, with what `register` adds to its knobs and counters. A
/// mechanism is worth running without one, so trouble is only said.
pub(crate) fn open(
    process: &str,
    register: impl FnOnce(&Registry) -> Result<(), knobs::Error>,
) -> Option<Server> {
    let registry = Registry::new(process);
    let opened = register(&registry).and_then(|()| Server::bind(registry));
    match opened {
        Ok(server) => {
            tracing::debug!("control socket {}", server.path().display());
            Some(server)
        }
        Err(error) => {
            tracing::warn!("no control socket, so no knobs: {error}");
            None
        }
    }
}

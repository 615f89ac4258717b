//! Asking an endpoint over HTTP.

use std::time::Duration;

use ureq::Agent;

use crate::{Error, Result};

/// How long an answer may take, from looking up the name to the last byte.
pub(super) const LIMIT: Duration = Duration::from_secs(2);

/// The longest answer that is taken.
pub(super) const LENGTH: u64 = 16 << 20;

/// The text format first: what it lacks is not used here.
const ACCEPT: &str = "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5,\
                      */*;q=0.1";

/// An address that is asked again and again, with a new connection each time.
pub(super) struct Endpoint {
    agent: Agent,
    url: String,
}

impl Endpoint {
    pub(super) fn new(url: &str) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(LIMIT))
            // What the user names is what is asked, whatever the environment or the server says.
            .proxy(None)
            .max_redirects(0)
            .max_idle_connections(0)
            .user_agent(concat!("cachelane/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { agent: config.new_agent(), url: url.into() }
    }

    /// The answer's text.
    ///
    /// # Errors
    /// [`ErrorKind::Void`](crate::ErrorKind::Void): no answer in time, one that is too long or that
    /// is not text, or a status that is not 200.
    pub(super) fn fetch(&self) -> Result<String> {
        let failed = |error: ureq::Error| Error::void(format!("{}: {error}", self.url));
        let mut answer =
            self.agent.get(&self.url).header("accept", ACCEPT).call().map_err(failed)?;
        if answer.status() != 200 {
            return Err(Error::void(format!("{}: status {}", self.url, answer.status())));
        }
        let body = answer.body_mut().with_config().limit(LENGTH).read_to_vec().map_err(failed)?;
        let not_text = |_| Error::void(format!("{}: the answer is not UTF-8", self.url));
        String::from_utf8(body).map_err(not_text)
    }
}

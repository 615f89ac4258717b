//! Filter expressions that users give.

use std::sync::Arc;
use std::time::Duration;

use bpf::{Expression, ExpressionError};

use crate::exit::{host_cannot, usage};

/// Compiles what `--filter` was given, if it was.
pub(crate) fn compile(filter: Option<&str>) -> anyhow::Result<Option<Arc<Expression>>> {
    const PATIENCE: Duration = Duration::from_secs(30);
    let Some(text) = filter else { return Ok(None) };
    match compile_within(text, PATIENCE) {
        Ok(expression) => Ok(Some(Arc::new(expression))),
        Err(error @ ExpressionError::NoLibpcap(_)) => {
            Err(host_cannot(format!("--filter: {error}")))
        }
        Err(error @ ExpressionError::Host(_)) => {
            Err(host_cannot(format!("--filter '{text}': {error}")))
        }
        Err(error) => Err(usage(format!("--filter {}", wrong(text, &error)))),
    }
}

/// Compiles what an option or a key was given, for which libpcap may take so long.
pub(crate) fn compile_within(text: &str, limit: Duration) -> Result<Expression, ExpressionError> {
    match text.trim().is_empty() {
        // For libpcap, that matches everything.
        true => Err(ExpressionError::Wrong("nothing is in it".into())),
        false => Expression::compile(text, limit),
    }
}

/// What is wrong with what an option or a key was given.
pub(crate) fn wrong(text: &str, error: &ExpressionError) -> String {
    let expected = "expected an expression as of tcpdump, such as 'tcp port 80': man pcap-filter";
    format!("'{text}': {error} ({expected})")
}

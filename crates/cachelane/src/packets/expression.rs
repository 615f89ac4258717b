//! Filter expressions that users give.

use std::sync::Arc;

use bpf::{Expression, ExpressionError};

use crate::exit::{host_cannot, usage};

/// Compiles what `--filter` was given, if it was.
pub(crate) fn compile(filter: Option<&str>) -> anyhow::Result<Option<Arc<Expression>>> {
    let Some(text) = filter else { return Ok(None) };
    if text.trim().is_empty() {
        let expected = "expected an expression as of tcpdump, such as 'tcp port 80'";
        return Err(usage(format!("--filter '{text}': nothing is in it ({expected})")));
    }
    match Expression::compile(text) {
        Ok(expression) => Ok(Some(Arc::new(expression))),
        Err(error @ ExpressionError::NoLibpcap(_)) => {
            Err(host_cannot(format!("--filter: {error}")))
        }
        Err(error) => Err(usage(format!(
            "--filter '{text}': {error} (expected an expression as of tcpdump: man pcap-filter)"
        ))),
    }
}

//! iperf3, to check the lab's own drivers by.

use std::{net::SocketAddr, time::Duration};

use serde_json::Value;

use super::Program;
use crate::{Command, Error, ErrorKind, Host, Result};

/// What an iperf3 client measures over TCP.
#[derive(Clone, Debug)]
pub struct Iperf3Options {
    /// Whole seconds, 1 to 3600.
    pub seconds: u32,
    /// Streams at a time.
    pub streams: u32,
    /// Bytes a write; iperf3's default is 128 KiB.
    pub write_size: Option<u32>,
    /// Let the server send.
    pub reverse: bool,
    /// The CPUs that the client and the server are pinned to.
    pub cpus: Option<(usize, usize)>,
}

impl Default for Iperf3Options {
    fn default() -> Self {
        Self { seconds: 1, streams: 1, write_size: None, reverse: false, cpus: None }
    }
}

/// What iperf3 reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iperf3Report {
    /// Bytes sent by all streams.
    pub sent: u64,
    /// Bytes received by all streams.
    pub received: u64,
    /// How long the receiver measured.
    pub elapsed: Duration,
    /// TCP segments that were sent again.
    pub retransmits: u64,
}

impl Iperf3Report {
    /// Bytes received a second.
    pub fn rate(&self) -> f64 {
        self.received as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Runs an iperf3 client in `host` against a server at `target`.
///
/// # Errors
/// [`ErrorKind::Missing`] if iperf3 is not installed; [`ErrorKind::Command`] with its message
/// if it fails; [`ErrorKind::TimedOut`] if it takes ten seconds longer than it should.
pub fn iperf3(host: &Host, target: SocketAddr, options: &Iperf3Options) -> Result<Iperf3Report> {
    if !(1..=3600).contains(&options.seconds) || options.streams == 0 {
        return Err(Error::invalid("iperf3 runs for 1 to 3600 s, on at least one stream"));
    }
    let mut command = host
        .command(Program::Iperf3.name())
        .args(["--json", "--connect-timeout", "5000", "--client", &target.ip().to_string()])
        .args(["--port", &target.port().to_string()])
        .args(["--time", &options.seconds.to_string()])
        .args(["--parallel", &options.streams.to_string()]);
    if let Some(bytes) = options.write_size {
        command = command.args(["--length", &bytes.to_string()]);
    }
    if options.reverse {
        command = command.arg("--reverse");
    }
    if let Some((client, server)) = options.cpus {
        command = command.args(["--affinity", &format!("{client},{server}")]);
    }
    let limit = Duration::from_secs(u64::from(options.seconds) + 10);
    parse(&command.output_within(limit)?.stdout)
}

pub(super) fn server(host: &Host, address: SocketAddr) -> Command {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    host.command(Program::Iperf3.name()).args(["--server", "--bind", &ip, "--port", &port])
}

fn parse(output: &[u8]) -> Result<Iperf3Report> {
    let failed = |why: &str| Error::new(ErrorKind::Command, format!("iperf3: {why}"));
    let report: Value = serde_json::from_slice(output)
        .map_err(|error| failed(&format!("unexpected output: {error}")))?;
    if let Some(error) = report["error"].as_str() {
        return Err(failed(error));
    }
    let sum = |end: &str, field: &str| report["end"][end][field].as_f64();
    let field = |end: &str, field: &str| {
        sum(end, field).ok_or_else(|| failed(&format!("its report has no {end}.{field}")))
    };
    let elapsed = Duration::try_from_secs_f64(field("sum_received", "seconds")?);
    Ok(Iperf3Report {
        sent: field("sum_sent", "bytes")? as u64,
        received: field("sum_received", "bytes")? as u64,
        elapsed: elapsed.map_err(|error| failed(&error.to_string()))?,
        // Not every system counts them.
        retransmits: sum("sum_sent", "retransmits").unwrap_or_default() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_and_errors_are_told_apart() {
        let text = br#"{"end": {"sum_sent": {"bytes": 3000, "seconds": 1.0, "retransmits": 2},
                        "sum_received": {"bytes": 2000, "seconds": 2.0}}}"#;
        let report = parse(text).expect("a report");
        assert_eq!((report.sent, report.received, report.retransmits), (3000, 2000, 2));
        assert_eq!(report.rate(), 1000.0);
        for (text, part) in [
            (&br#"{"end": {}, "error": "unable to connect"}"#[..], "unable to connect"),
            (b"{}", "sum_received.seconds"),
            (b"", "unexpected output"),
        ] {
            let error = parse(text).expect_err(part);
            assert_eq!(error.kind(), ErrorKind::Command);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

//! HAProxy as a TCP proxy.
//!
//! As its configuration manual and "Introduction" advise: one process with `nbthread` threads, which
//! choose their CPUs; `maxconn` set explicitly; timeouts for connect, client and
//! server, long here so that idle connections stay. Health checks are off, as in any of the peers.
//! If it is to log, its stderr is the file.

use std::path::Path;

use super::{Program, ProxyOptions, write_config};
use crate::{Command, Host, Result};

pub(super) fn command(
    host: &Host,
    options: &ProxyOptions,
    splice: bool,
    dir: &Path,
) -> Result<Command> {
    let config = write_config(dir, &config(options, splice))?;
    // Stays in the foreground.
    Ok(host.command(Program::Haproxy.name()).args(["-db", "-f"]).arg(config))
}

fn config(options: &ProxyOptions, splice: bool) -> String {
    // Two sockets a connection. HAProxy keeps a pipe, two descriptors, for every fourth.
    let connections = options.connections(if splice { 3 } else { 2 });
    let threads = options.threads;
    let mut text = format!("global\n    maxconn {connections}\n    nbthread {threads}\n");
    text += "defaults\n    mode tcp\n    timeout connect 5s\n";
    text += "    timeout client 1h\n    timeout server 1h\n";
    if splice {
        text += "    option splice-auto\n";
    }
    if options.log {
        text += "    log stderr format raw local0\n    option tcplog\n";
    }
    let (listen, to) = (options.listen, options.to);
    text + &format!("listen relay\n    bind {listen}\n    server backend {to}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_says_what_was_asked() {
        let address = |port| ([10, 0, 0, 1], port).into();
        let mut options = ProxyOptions::new(address(80), address(81));
        (options.threads, options.connections) = (3, 10);
        let expected = "global\n    maxconn 10\n    nbthread 3\n\
                        defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 1h\n    timeout server 1h\n    \
                        option splice-auto\nlisten relay\n    bind 10.0.0.1:80\n    \
                        server backend 10.0.0.1:81\n";
        assert_eq!(config(&options, true), expected);
        let plain = config(&options, false);
        assert!(!plain.contains("splice") && !plain.contains("log"), "{plain}");
        options.log = true;
        let logging = config(&options, false);
        assert!(
            logging.contains("    log stderr format raw local0\n    option tcplog\nlisten"),
            "{logging}"
        );
    }
}

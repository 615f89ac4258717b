//! nginx's stream module as a TCP proxy.
//!
//! As its documentation advises: one worker process a CPU, which the kernel chooses; `reuseport`,
//! so that each worker has a listening socket of its own; `worker_connections` counted with the
//! connections to the backend.
//!
//! Where nginx knows `proxy_half_close` it is on, for what the other proxies do anyway: by
//! default, nginx closes both directions when one ends, and the bytes under way are lost.

use std::{
    path::{Path, PathBuf},
    process::Output,
};

use super::{Program, ProxyOptions, write_config};
use crate::{Command, Error, ErrorKind, Host, Result};

/// Where nginx looks for modules if it was not told at build time.
const MODULES: &str = "/usr/lib/nginx/modules";

/// The version that `proxy_half_close` came with.
const HALF_CLOSE: [u32; 3] = [1, 21, 4];

pub(super) fn command(
    host: &Host,
    options: &ProxyOptions,
    buffer: Option<usize>,
    dir: &Path,
) -> Result<Command> {
    let nginx = Program::Nginx.name();
    let build = Build::parse(&host.command(nginx).arg("-V").output()?)?;
    let pid_file = dir.join("pid").display().to_string();
    let config = write_config(dir, &config(options, buffer, &build, &pid_file))?;
    let command = host.command(nginx).arg("-p").arg(dir).args(["-e", "stderr"]);
    // Its workers would outlive a master that is killed.
    Ok(command.arg("-c").arg(config).contained())
}

/// What `nginx -V` says about this nginx.
#[derive(Debug, Default, PartialEq)]
struct Build {
    /// The file of the stream module; none if it is built in.
    module: Option<String>,
    /// Whether it knows `proxy_half_close`.
    half_close: bool,
}

impl Build {
    fn parse(output: &Output) -> Result<Self> {
        let text = String::from_utf8_lossy(&output.stderr);
        let value = |name: &str| text.split_whitespace().find_map(|word| word.strip_prefix(name));
        let has = |option: &str| text.split_whitespace().any(|word| word == option);
        let version = value("nginx/").unwrap_or_default().split('.');
        let version: Vec<u32> = version.map_while(|part| part.parse().ok()).collect();
        let half_close = version >= HALF_CLOSE.to_vec();
        if has("--with-stream") {
            return Ok(Self { module: None, half_close });
        }
        if !has("--with-stream=dynamic") {
            return Err(without_stream("it is built without it"));
        }
        let folder = value("--modules-path=").unwrap_or(MODULES);
        let file = PathBuf::from(folder).join("ngx_stream_module.so");
        match file.exists() {
            true => Ok(Self { module: Some(file.display().to_string()), half_close }),
            false => Err(without_stream(&format!("there is no {}", file.display()))),
        }
    }
}

fn without_stream(why: &str) -> Error {
    let kind = ErrorKind::Missing { package: "libnginx-mod-stream" };
    Error::new(kind, format!("nginx has no stream module: {why}; see libnginx-mod-stream"))
}

fn config(options: &ProxyOptions, buffer: Option<usize>, build: &Build, pid_file: &str) -> String {
    let connections = options.connections(2) * 2;
    let (threads, listen, to) = (options.threads, options.listen, options.to);
    let load = build.module.iter().map(|file| format!("load_module {file};"));
    let mut lines: Vec<String> = load.collect();
    lines.push(format!("daemon off;\npid {pid_file};\nerror_log stderr warn;"));
    lines.push(format!("worker_processes {threads};"));
    // Some to spare for listeners and channels to the master.
    lines.push(format!("worker_rlimit_nofile {};", connections + 128));
    lines.push(format!("events {{ worker_connections {}; }}", connections + 64));
    let size = buffer.map(|bytes| format!(" proxy_buffer_size {bytes};")).unwrap_or_default();
    let half = if build.half_close { " proxy_half_close on;" } else { "" };
    let server =
        format!("listen {listen} reuseport; proxy_pass {to};{size}{half} proxy_timeout 1h;");
    let log = match options.log {
        true => {
            "log_format tcp '$remote_addr [$time_local] $bytes_sent $bytes_received $session_time'; \
             access_log access.log tcp; "
        }
        false => "",
    };
    lines.push(format!("stream {{ {log}server {{ {server} proxy_connect_timeout 5s; }} }}\n"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_says_what_was_asked() {
        let address = |port| ([10, 0, 0, 1], port).into();
        let mut options = ProxyOptions::new(address(80), address(81));
        (options.threads, options.connections) = (3, 10);
        let build = Build { module: Some("/m.so".into()), half_close: true };
        let text = config(&options, Some(1024), &build, "/p");
        let expected = "load_module /m.so;\ndaemon off;\npid /p;\nerror_log stderr warn;\n\
                        worker_processes 3;\n\
                        worker_rlimit_nofile 148;\nevents { worker_connections 84; }\n\
                        stream { server { listen 10.0.0.1:80 reuseport; proxy_pass 10.0.0.1:81; \
                        proxy_buffer_size 1024; proxy_half_close on; proxy_timeout 1h; proxy_connect_timeout 5s; } }\n";
        assert_eq!(text, expected);
        let plain = config(&options, None, &Build::default(), "/p");
        for absent in ["load_module", "buffer_size", "half_close", "access_log"] {
            assert!(!plain.contains(absent), "{plain}");
        }
    }

    #[test]
    fn nginx_without_the_stream_module_names_the_package() {
        let said = |stderr: &str| Output {
            status: Default::default(),
            stdout: Vec::new(),
            stderr: stderr.into(),
        };
        for (version, half_close) in [("1.18.0", false), ("1.21.4", true), ("1.22.1", true)] {
            let text = format!("version: nginx/{version} --with-stream_ssl_module --with-stream");
            let expected = Build { module: None, half_close };
            assert_eq!(Build::parse(&said(&text)).expect("built in"), expected, "{version}");
        }
        let missing = "--modules-path=/nonexistent --with-stream=dynamic";
        for build in ["--with-stream_ssl_module", missing] {
            let error = Build::parse(&said(build)).expect_err(build);
            let package = "libnginx-mod-stream";
            assert_eq!(error.kind(), ErrorKind::Missing { package }, "{build}");
        }
    }
}

//! What the command says on a kernel that is too old for it. `scripts/kernels/test refuse` runs this on
//! Linux 6.1; elsewhere nothing is old enough.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use common::{Ended, Place, says, text};
use lab::testing::root;
use lab::{BridgeOptions, Host, Lab};

/// The command, which knows of no process but those of this test.
fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = place.command(args);
    command.env("CACHELANE_RUNTIME_DIR", place.path()).env("NO_COLOR", "1");
    command
}

/// Asserts that the command ends with code 3, having said which kernel it needs, which there is, and
/// what is missing.
fn refuses(place: &Place, host: &Host, args: &[&str], missing: &str) {
    let mut command = command(place, args);
    let output = host.run(move || command.output()).expect("the host").expect("it runs");
    assert_eq!(output.status.code(), Some(3), "{args:?}: {output:?}");
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let here = format!("this is Linux {release}");
    for part in [&here, "expected Linux 6.6 or newer", missing] {
        assert!(text(&output.stderr).contains(part), "{args:?}, {part}: {output:?}");
    }
}

#[test]
#[ignore = "needs a kernel older than Linux 6.6"]
fn root_what_an_old_kernel_lacks_is_named_with_the_one_that_is_needed() {
    if !root("root_what_an_old_kernel_lacks_is_named_with_the_one_that_is_needed") {
        return;
    }
    let lab = Lab::new("oldkernel").expect("a lab");
    let members = [lab.host("a").expect("a host"), lab.host("b").expect("a host")];
    let bridge =
        lab.bridge("switch", &members.each_ref(), BridgeOptions::default()).expect("a bridge");
    let (place, host) = (Place::new(), &bridge.own.host);
    let port = bridge.ports[0].as_str();
    let socket = place.path().join("lend.sock");
    let socket = socket.to_str().expect("text");
    let relayed = ["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9", "--engine"];
    let sockmap = [&relayed[..], &["sockmap"]].concat();
    let (tcx, rings) = ("no tcx links", "no AF_XDP rings that can be mapped of a bound socket");
    let tracepoints = "no tracepoints sock_recv_length and sock_send_length";
    let function = "no kernel function bpf_cast_to_kern_ctx";
    for (args, missing) in [
        (&["bridge", "br0"][..], tcx),
        (&["bridge", "br0", "--check"], tcx),
        (&["bridge", "br0", "--dry-run"], tcx),
        (&["bridge", "br1", "--wait"], tcx),
        (&["bridge", "--all"], tcx),
        (&["steer", port], tracepoints),
        (&["steer", port, "--force"], tracepoints),
        (&["steer", port, "--check"], tracepoints),
        (&["steer", port, "--dry-run"], tracepoints),
        (&["xsk", "send", port, "--count", "1"], rings),
        (&["xsk", "drop", port], rings),
        (&["xsk", "drop", port, "--dry-run"], rings),
        (&["xsk", "forward", port], rings),
        (&["lend", port, "--socket", socket], rings),
        (&["lend", port, "--socket", socket, "--dry-run"], rings),
        (&sockmap, function),
        (&[&sockmap[..], &["--dry-run"]].concat(), function),
    ] {
        refuses(&place, host, args, missing);
    }
    let found = command(&place, &["doctor", "--only", "CL037"]).output().expect("it runs");
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(text(&found.stdout).contains("expected 6.6 or newer"), "{found:?}");
}

#[test]
#[ignore = "needs a kernel older than Linux 6.6"]
fn the_relay_works_there() {
    let backend = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = backend.local_addr().expect("its address").to_string();
    for engine in ["copy", "splice", "auto"] {
        let front = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = front.local_addr().expect("its address").to_string();
        drop(front);
        let place = Place::new();
        let mut relay =
            command(&place, &["relay", "--listen", &at, "--to", &to, "--engine", engine]);
        let (relay, _log) = says(&mut relay, "relaying");
        let _relay = Ended(relay);
        let mut client = TcpStream::connect(&at).expect("the relay accepts");
        let (mut server, _) = backend.accept().expect("the relay connects");
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
        let sent = bytes.clone();
        let sender = std::thread::spawn(move || {
            client.write_all(&sent).expect("it takes them");
            client.shutdown(std::net::Shutdown::Write).expect("the end");
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).expect("an answer");
            answer
        });
        let mut got = Vec::new();
        server.read_to_end(&mut got).expect("all of it");
        assert!(got == bytes, "{engine}: {} bytes came", got.len());
        server.write_all(b"thanks").expect("it takes them");
        drop(server);
        assert_eq!(sender.join().expect("no panic"), b"thanks", "{engine}");
    }
}

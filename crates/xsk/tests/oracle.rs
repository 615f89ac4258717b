//! Against xsk-rs, which is built on libxdp: each side's sender talks to the other's receiver.

mod common;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cachelane_xsk::{ProgramOptions, SocketOptions};
use common::{PATIENCE, Side, all_home, length, number, numbered, pack, two, umem, unpack};
use lab::LinkOptions;
use lab::testing::root;

const PACKETS: u64 = 2_000;

/// The program that has xsk-rs; built once. None, and said so, where that cannot be.
fn oracle(test: &str) -> Option<&'static PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    if !root(test) {
        return None;
    }
    // What the build of libxdp needs beyond that of this crate.
    if Command::new("m4").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: {test}: needs m4 to build libxdp");
        return None;
    }
    if !Path::new("/usr/include/pcap/dlt.h").exists() {
        eprintln!("skipped: {test}: needs libpcap's headers to build libxdp");
        return None;
    }
    BUILT.get_or_init(|| Some(build())).as_ref()
}

fn build() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("oracle");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--manifest-path"]).arg(here.join("Cargo.toml"));
    // Not this build's flags: they are for another program.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let status = cargo.arg("--target-dir").arg(&target).status().expect("cargo runs");
    assert!(status.success(), "{cargo:?}: {status}");
    target.join("debug/cachelane-xsk-oracle")
}

fn start(oracle: &Path, side: &Side, role: &str) -> lab::Process {
    // libxdp would pin a dispatcher program for all programs to share.
    let command = side.host.command("env").arg("LIBXDP_SKIP_DISPATCHER=1").arg(oracle);
    let command = command.args([role, side.device.name(), &PACKETS.to_string()]);
    command.stdout(Stdio::piped()).spawn().expect("the oracle")
}

fn large() -> SocketOptions {
    SocketOptions::default().fill_size(2048)
}

#[test]
fn root_xsk_rs_sends_and_we_receive() {
    let Some(oracle) = oracle("root_xsk_rs_sends_and_we_receive") else { return };
    let two = two(LinkOptions::default());
    let umem = umem(4096, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let mut program = two.b.attach(ProgramOptions::default());
    let mut ours = two.b.bind(&umem, 0, &large());
    program.insert(&ours).expect("inserted");
    assert_eq!(ours.fill(&mut cache, 2048), 2048);
    let mut theirs = start(oracle, &two.a, "send");
    let (mut seen, until, mut received) = (0, Instant::now() + PATIENCE, Vec::new());
    while seen < PACKETS {
        assert!(Instant::now() < until, "{seen} of {PACKETS} arrived");
        ours.wait(Some(Duration::from_millis(100))).expect("waited");
        ours.receive(&mut received, 64);
        for packet in unpack(&mut received, &mut cache) {
            assert_eq!((number(&packet), packet.len()), (seen, length(seen)));
            seen += 1;
        }
    }
    assert!(theirs.wait_within(PATIENCE).expect("it ends").success());
    drop(ours);
    all_home(&umem, cache);
}

#[test]
fn root_we_send_and_xsk_rs_receives() {
    let Some(oracle) = oracle("root_we_send_and_xsk_rs_receives") else { return };
    let two = two(LinkOptions::default());
    let umem = umem(512, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let mut ours = two.a.bind(&umem, 0, &large().rx_size(0));
    let mut theirs = start(oracle, &two.b, "receive");
    let stdout = theirs.pipes().stdout.take().expect("a pipe");
    let mut lines = BufReader::new(stdout).lines().map(|line| line.expect("a line"));
    assert!(lines.by_ref().any(|line| line == "ready"), "it did not start");
    let (mut next, mut packets, until) = (0, Vec::new(), Instant::now() + PATIENCE);
    while next < PACKETS || ours.outstanding() != cachelane_xsk::Outstanding::default() {
        assert!(Instant::now() < until, "{next} posted: {:?}", ours.outstanding());
        while next < PACKETS && packets.len() < 32 {
            let bytes = numbered(two.a.mac, two.b.mac, next, length(next));
            pack(&bytes, 2048, &mut cache, &mut packets);
            next += 1;
        }
        ours.send(&mut packets);
        ours.kick().expect("sent");
        ours.complete(&mut cache, 64);
    }
    assert!(lines.any(|line| line == "done"), "it did not receive all, in order");
    assert!(theirs.wait_within(PATIENCE).expect("it ends").success());
    drop(ours);
    all_home(&umem, cache);
}

//! What this host does shows in what is measured.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use cachelane_sources::{Error, ErrorKind, MeasureSpec, Meter, Reading, list};
use lab::{Lab, LinkOptions};
use rustix::time::{ClockId, clock_gettime};
use trial::{Part, Value};

fn specs(texts: &[&str]) -> Vec<MeasureSpec> {
    texts.iter().map(|text| text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))).collect()
}

fn open(texts: &[&str]) -> Meter {
    Meter::open(&specs(texts)).unwrap_or_else(|error| panic!("{texts:?}: {error}"))
}

fn refused(texts: &[&str]) -> Error {
    Meter::open(&specs(texts)).err().unwrap_or_else(|| panic!("{texts:?} was opened"))
}

/// Numerators and denominators.
fn ratios(meter: &Meter, from: &Reading, to: &Reading) -> Vec<(f64, f64)> {
    let ratio = |value| match value {
        Ok(Value::Part(Part { num, den })) => (num, den),
        other => panic!("{other:?}"),
    };
    meter.values(from, to).into_iter().map(ratio).collect()
}

fn cpu_time(clock: ClockId) -> Duration {
    clock_gettime(clock).try_into().expect("not negative")
}

/// Keeps this thread on a CPU for so long.
fn work(time: Duration) {
    let until = cpu_time(ClockId::ThreadCPUTime) + time;
    while cpu_time(ClockId::ThreadCPUTime) < until {
        std::hint::spin_loop();
    }
}

#[test]
fn work_shows_in_the_cpu_time_of_host_and_process() {
    let process = format!("process.cpu@{}", std::process::id());
    let mut meter = open(&["cpu.busy", "cpu.steal", &process, "cpu.busy/switches"]);
    let start = meter.read().expect("all can be read");
    work(Duration::from_millis(500));
    let end = meter.read().expect("all can be read");
    let found = ratios(&meter, &start, &end);
    let [(busy, seconds), (steal, _), (own, _), (again, switches)] = found[..] else { panic!() };
    assert!(own >= 0.5, "{found:?}");
    // Where a hypervisor takes the CPU away, a thread's time goes on.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let rounding = 0.04 * cpus;
    assert!(busy + steal >= 0.5 - rounding, "{found:?}");
    assert!(busy <= seconds * 1024.0 && busy == again && switches >= 1.0, "{found:?}");
    let units: Vec<String> = meter.measures().into_iter().map(|measure| measure.unit).collect();
    assert_eq!(units, ["CPUs", "CPUs", "CPUs", "CPU s/switches"]);
}

#[test]
fn memory_that_is_in_use_shows() {
    const SIZE: usize = 256 << 20;
    let mut meter = open(&["memory.used"]);
    let grown = lab::testing::comes_true(|| {
        let start = meter.read().expect("it can be read");
        let level = ratios(&meter, &start, &start);
        assert_eq!(level, [(0.0, 0.0)]);
        let later = meter.read().expect("it can be read");
        let [(free, seconds)] = ratios(&meter, &start, &later)[..] else { panic!() };
        let block = std::hint::black_box(vec![1u8; SIZE]);
        let start = meter.read().expect("it can be read");
        let later = meter.read().expect("it can be read");
        let [(used, more_seconds)] = ratios(&meter, &start, &later)[..] else { panic!() };
        drop(block);
        // Others may free memory meanwhile.
        used / more_seconds > free / seconds + SIZE as f64 / 2.0
    });
    assert!(grown, "a block of 256 MiB does not show");
}

#[test]
fn root_packets_of_a_namespace_are_counted_and_a_device_that_goes_is_said() {
    const TEST: &str = "root_packets_of_a_namespace_are_counted_and_a_device_that_goes_is_said";
    if !lab::testing::root(TEST) {
        return;
    }
    const PACKETS: usize = 1000;
    const LENGTH: usize = 1000;
    let lab = Lab::new("sources").expect("a lab");
    let (client, server) =
        (lab.host("client").expect("a host"), lab.host("server").expect("a host"));
    let link = lab.link(&client, &server, LinkOptions::default()).expect("a link");
    let names = ["net.packets", "net.bytes", "net.packets@lo", "udp.drops", "tcp.retransmits"];
    let meter = |host: &lab::Host| host.run(|| open(&names)).expect("a thread");
    // Read from this thread, which is in another namespace.
    let (mut here, mut there) = (meter(&client), meter(&server));
    let target: SocketAddr = link.b.socket(4000);
    let sink = server.run(|| UdpSocket::bind(target)).expect("a thread").expect("a socket");
    let (here_start, there_start) = (here.read().expect("read"), there.read().expect("read"));
    client
        .run(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
            let own = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
            let near = own.local_addr().expect("an address");
            for _ in 0..PACKETS {
                socket.send_to(&[0; LENGTH], target).expect("sent");
            }
            socket.send_to(&[0; LENGTH], near).expect("sent");
        })
        .expect("a thread");
    // The receiver takes packets in its own time, and keeps what fits.
    let arrived = lab::testing::comes_true(|| {
        let now = there.read().expect("read");
        ratios(&there, &there_start, &now)[0].0 >= PACKETS as f64
    });
    let (here_end, there_end) = (here.read().expect("read"), there.read().expect("read"));
    let sent = ratios(&here, &here_start, &here_end);
    let received = ratios(&there, &there_start, &there_end);
    assert!(arrived, "{received:?}");
    // Neighbours are asked for beside it.
    let expected = PACKETS as f64..PACKETS as f64 + 100.0;
    assert!(expected.contains(&sent[0].0), "{sent:?}");
    assert!(sent[1].0 >= (PACKETS * LENGTH) as f64, "{sent:?}");
    assert_eq!((sent[2].0, sent[4].0), (2.0, 0.0), "one packet, sent and received on lo: {sent:?}");
    assert_eq!(received[2].0, 0.0, "{received:?}");
    let mut kept = 0;
    sink.set_nonblocking(true).expect("a socket");
    while sink.recv(&mut [0; 1]).is_ok() {
        kept += 1;
    }
    assert_eq!(received[3].0, (PACKETS - kept) as f64, "kept {kept}: {received:?}");
    assert!(kept < PACKETS, "the receive buffer has no place for all");

    let device = link.a.device.clone();
    client.command("ip").args(["link", "delete", &device]).run().expect("it can be removed");
    let after = here.read().expect("one failure is none");
    let error = here.values(&here_end, &after).remove(0).expect_err("its device is gone");
    assert_eq!(error.kind(), ErrorKind::Void);
    assert!(error.to_string().contains(&format!("{device} is gone")), "{error}");
}

#[test]
fn what_this_host_lacks_is_named_with_the_reason() {
    let pid = u32::MAX >> 1;
    for (text, kind, words) in [
        (format!("process.cpu@{pid}"), ErrorKind::Unknown, format!("no process {pid}")),
        ("net.bytes@nowhere0".into(), ErrorKind::Unknown, "no device nowhere0 (there are: ".into()),
        ("cpu.busy@1023".into(), ErrorKind::Unknown, "cpu 1023".into()),
        ("cgroup.cpu@/no/where".into(), ErrorKind::Unknown, "looked for".into()),
        ("pmu:nothing,lower".into(), ErrorKind::Unknown, "expected cycles".into()),
        ("counter:no.such@1,lower".into(), ErrorKind::Unknown, "counter:no.such@1".into()),
    ] {
        let error = refused(&[&text]);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(&words), "{error}");
    }
    for listed in list().expect("a list") {
        let Some(reason) = &listed.absent else { continue };
        let name = listed.quantity.name.split(['[', '@']).next().unwrap_or_default();
        let better = if listed.better.is_none() { ",lower" } else { "" };
        let error = refused(&[&format!("{name}{better}")]).to_string();
        assert_eq!(error, *reason, "{name}");
    }
}

#[test]
fn a_reading_of_everything_costs_next_to_nothing() {
    let listed = list().expect("a list");
    let there = listed.iter().filter(|listed| listed.absent.is_none());
    let names = there.filter(|listed| !listed.quantity.name.contains("URL")).map(|listed| {
        let name = listed.quantity.name.replace("@PID", &format!("@{}", std::process::id()));
        let name = name.replace("@PATH", "@/").replace("[@CPUS]", "").replace("[@DEVICE]", "");
        if listed.better.is_none() { format!("{name},lower") } else { name }
    });
    let names: Vec<String> = names.filter(|name| !name.starts_with("counter:")).collect();
    assert!(names.len() > 20, "{names:?}");
    let mut meter = open(&names.iter().map(String::as_str).collect::<Vec<_>>());
    const READINGS: u32 = 30;
    let start = cpu_time(ClockId::ThreadCPUTime);
    for _ in 0..READINGS {
        meter.read().expect("all can be read");
    }
    let each = (cpu_time(ClockId::ThreadCPUTime) - start) / READINGS;
    // Three readings in a window of a second may cost 10 ms, of which others need some. The text of
    // several files grows with the number of CPUs.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    let limit = Duration::from_millis(2) + Duration::from_micros(100) * cpus;
    assert!(each < limit, "{each:?} a reading of {} quantities on {cpus} CPUs", names.len());
}

//! What is refused, and what the message says.

mod common;

use std::os::fd::AsFd as _;

use bpf::xdp::{Place, attach};
use cachelane_xsk::{
    Attach, BusyPoll, Device, ErrorKind, Hook, Mode, Program, ProgramOptions, Socket, Umem,
};
use common::{Side, all_home, pool, small, two, umem};
use lab::testing::root;
use lab::{LinkOptions, PassProgram};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Runs `work` on a thread of its own that has lost these capabilities.
fn without<T: Send>(lost: CapabilitySet, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let mut sets = capabilities(None).expect("capabilities");
            sets.effective.remove(lost);
            set_capabilities(None, sets).expect("fewer capabilities");
            work()
        });
        thread.join().expect("the work")
    })
}

fn says(error: &cachelane_xsk::Error, kind: ErrorKind, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

#[test]
fn root_a_queue_that_is_not_there_is_named_with_how_many_there_are() {
    if !root("root_a_queue_that_is_not_there_is_named_with_how_many_there_are") {
        return;
    }
    for (queues, words) in [(1, ["no queue 7", "it has one"]), (3, ["no queue 7", "from 0 to 2"])] {
        let two = two(LinkOptions { queues, ..LinkOptions::default() });
        let error = two.a.try_bind(&umem(64, 2048), 7, &small()).expect_err("no such queue");
        says(&error, ErrorKind::NoQueue, &words);
        says(&error, ErrorKind::NoQueue, &["eth0", "ethtool -l eth0"]);
    }
}

#[test]
fn root_a_queue_that_is_taken_is_refused_until_it_is_free() {
    if !root("root_a_queue_that_is_taken_is_refused_until_it_is_free") {
        return;
    }
    let two = two(LinkOptions::default());
    let (ours, theirs) = (umem(64, 2048), umem(64, 2048));
    let first = two.a.bind(&theirs, 0, &small());
    let error = two.a.try_bind(&ours, 0, &small()).expect_err("taken");
    says(&error, ErrorKind::QueueTaken, &["queue 0 of eth0", "ss --xdp -p"]);
    // Also by the same area: a second socket is bound beside the first.
    let error = two.a.try_bind(&theirs, 0, &small()).expect_err("taken");
    says(&error, ErrorKind::QueueTaken, &["queue 0 of eth0", "beside"]);
    drop(first);
    drop(two.a.bind(&ours, 0, &small()));
}

#[test]
fn root_an_mtu_over_the_frame_size_is_refused_for_receivers() {
    if !root("root_an_mtu_over_the_frame_size_is_refused_for_receivers") {
        return;
    }
    let two = two(LinkOptions { mtu: 3000, ..LinkOptions::default() });
    let small_frames = umem(64, 2048);
    let error = two.a.try_bind(&small_frames, 0, &small()).expect_err("too small");
    let words = ["MTU of 3000", "3274 bytes", "have 2048", "frames of 4096", "mtu 1774"];
    says(&error, ErrorKind::FrameTooSmall, &words);
    drop(two.a.bind(&small_frames, 0, &small().rx_size(0)));
    drop(two.a.bind(&small_frames, 0, &small().multi_buffer(true)));
    drop(two.a.bind(&umem(64, 4096), 0, &small()));
}

#[test]
fn root_zero_copy_on_a_device_without_it_is_refused() {
    if !root("root_zero_copy_on_a_device_without_it_is_refused") {
        return;
    }
    let two = two(LinkOptions::default());
    let umem = umem(64, 2048);
    let options = small().mode(Mode::ZeroCopy);
    let error = two.a.try_bind(&umem, 0, &options).expect_err("veth copies");
    says(&error, ErrorKind::Unsupported, &["eth0", "zero-copy", "expected copy or auto"]);
    // What failed is not in the way.
    drop(two.a.bind(&umem, 0, &small()));
}

#[test]
fn root_a_device_that_is_gone_is_said_to_be() {
    if !root("root_a_device_that_is_gone_is_said_to_be") {
        return;
    }
    let two = two(LinkOptions::default());
    let umem = umem(128, 2048);
    let mut cache = umem.pool().cache(0).expect("a cache");
    let mut socket = two.a.bind(&umem, 0, &small());
    socket.fill(&mut cache, 32);
    two.a.host.ip(["link", "delete", "eth0"]).expect("deleted");
    let error = socket.wait(Some(std::time::Duration::from_millis(1))).expect_err("gone");
    says(&error, ErrorKind::Io, &["eth0", "no longer bound"]);
    let error = two.a.try_bind(&umem, 0, &small()).expect_err("gone");
    says(&error, ErrorKind::NoDevice, &["eth0"]);
    let error = two.a.try_attach(&ProgramOptions::default()).expect_err("gone");
    says(&error, ErrorKind::NoDevice, &["eth0"]);
    drop(socket);
    all_home(&umem, cache);
}

#[test]
fn root_a_device_says_which_programs_it_has_until_it_is_gone() {
    if !root("root_a_device_says_which_programs_it_has_until_it_is_gone") {
        return;
    }
    let two = two(LinkOptions::default());
    let device = || Device::find("eth0").expect("a device");
    let program = PassProgram::load().expect("root may");
    let (device, programs) = two
        .a
        .host
        .run(|| {
            let (device, mut counts) = (device(), Vec::new());
            let programs = || Hook::programs(&device).expect("a device").len();
            counts.push(programs());
            for place in [Place::Native, Place::Generic] {
                let link = attach(program.as_fd(), device.index(), place).expect("veth takes it");
                counts.push(programs());
                link.detach().expect("it was there");
                counts.push(programs());
            }
            (device, counts)
        })
        .expect("the host");
    assert_eq!(programs, [0, 1, 0, 1, 0]);
    two.a.host.ip(["link", "delete", "eth0"]).expect("deleted");
    let error = two.a.host.run(|| Hook::programs(&device)).expect("the host").expect_err("gone");
    says(&error, ErrorKind::NoDevice, &["eth0"]);
}

#[test]
fn root_an_area_over_the_memlock_limit_is_refused_with_the_limit() {
    if !root("root_an_area_over_the_memlock_limit_is_refused_with_the_limit") {
        return;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let Some(limit) = limit.filter(|limit| *limit < 1 << 30) else {
        eprintln!("skipped: memlock limit: this process has none below 1 GiB");
        return;
    };
    let pool = pool((limit / 2048 + 2) as u32, 2048);
    let error = without(CapabilitySet::IPC_LOCK, || Umem::new(pool).map(drop)).expect_err("no");
    let limit = format!("{} KiB", limit / 1024);
    says(&error, ErrorKind::MemlockLimit, &[&limit, "ulimit -l", "CAP_IPC_LOCK"]);
}

#[test]
fn root_callers_without_capabilities_are_told_which() {
    if !root("root_callers_without_capabilities_are_told_which") {
        return;
    }
    let two = two(LinkOptions::default());
    let umem = umem(64, 2048);
    let Side { host, device, .. } = &two.a;
    let raw = CapabilitySet::NET_RAW;
    let error = without(raw, || Umem::new(pool(64, 2048)).map(drop)).expect_err("no");
    says(&error, ErrorKind::NotPermitted, &["CAP_NET_RAW"]);
    let bind = || without(raw, || Socket::bind(&umem, device, 0, &small()).map(drop));
    says(&host.run(bind).expect("the host").expect_err("no"), ErrorKind::NotPermitted, &["CAP_"]);
    let lost = CapabilitySet::NET_ADMIN | CapabilitySet::BPF | CapabilitySet::SYS_ADMIN;
    let attach = || without(lost, || Program::attach(device, &ProgramOptions::default()).map(drop));
    let error = host.run(attach).expect("the host").expect_err("no");
    says(&error, ErrorKind::NotPermitted, &["CAP_NET_ADMIN"]);
}

#[test]
fn root_another_xdp_program_is_named_and_left_alone() {
    if !root("root_another_xdp_program_is_named_and_left_alone") {
        return;
    }
    let two = two(LinkOptions::default());
    for attach in [Attach::Native, Attach::Generic] {
        let with = |attach| ProgramOptions::default().attach(attach);
        let first = two.a.try_attach(&with(attach)).expect("a program");
        for second in [Attach::Auto, Attach::Native, Attach::Generic] {
            let error = two.a.try_attach(&with(second)).expect_err("one is there");
            says(&error, ErrorKind::ProgramPresent, &["eth0", "'cachelane_xsk' (id ", "xdp off"]);
        }
        drop(first);
    }
    two.a.try_attach(&ProgramOptions::default()).expect("the hook is free");
}

#[test]
fn root_a_driver_that_refuses_is_avoided_by_auto_only() {
    if !root("root_a_driver_that_refuses_is_avoided_by_auto_only") {
        return;
    }
    // On veth packets of this size need a program that takes several buffers.
    let two = two(LinkOptions { mtu: 9000, ..LinkOptions::default() });
    let with =
        |attach, multi_buffer| ProgramOptions::default().attach(attach).multi_buffer(multi_buffer);
    let error = two.a.try_attach(&with(Attach::Native, false)).expect_err("too large");
    says(&error, ErrorKind::NoXdp, &["eth0", "MTU of 9000", "multi-buffer"]);
    let program = two.a.try_attach(&with(Attach::Auto, false)).expect("a program");
    assert_eq!(program.attached(), Attach::Generic);
    drop(program);
    let program = two.a.try_attach(&with(Attach::Auto, true)).expect("a program");
    assert_eq!(program.attached(), Attach::Native);
}

#[test]
fn root_options_out_of_range_are_refused_by_name() {
    if !root("root_options_out_of_range_are_refused_by_name") {
        return;
    }
    let umem = umem(64, 2048);
    let device = Device::find("lo").expect("lo");
    let cases = [
        (small().rx_size(3), "rx_size 3"),
        (small().tx_size(1 << 31), "tx_size 2147483648"),
        (small().fill_size(0), "fill_size 0"),
        (small().completion_size(100), "completion_size 100"),
        (small().rx_size(0).tx_size(0), "both 0"),
        (small().tx_budget(Some(31)), "tx_budget 31"),
        (small().tx_budget(Some(65)), "32 to tx_size (64)"),
        (small().busy_poll(Some(BusyPoll { microseconds: 0, budget: 8 })), "busy poll of 0 us"),
    ];
    for (options, words) in cases {
        let error = Socket::bind(&umem, &device, 0, &options).expect_err(words);
        says(&error, ErrorKind::Invalid, &[words, "expected"]);
    }
}

#[test]
fn root_frames_of_other_sizes_than_the_kernel_takes_are_refused() {
    if !root("root_frames_of_other_sizes_than_the_kernel_takes_are_refused") {
        return;
    }
    for size in [1024, 8192] {
        let error = Umem::new(pool(64, size)).expect_err("refused");
        says(&error, ErrorKind::Invalid, &[&size.to_string(), "2048 to 4096"]);
    }
}

#[test]
fn root_a_socket_goes_into_the_program_of_its_own_device_only() {
    if !root("root_a_socket_goes_into_the_program_of_its_own_device_only") {
        return;
    }
    let two = two(LinkOptions::default());
    let umem = umem(64, 2048);
    let mut program = two.b.attach(ProgramOptions::default());
    let sender = two.b.bind(&umem, 0, &small().rx_size(0));
    says(&program.insert(&sender).expect_err("no ring"), ErrorKind::Invalid, &["rx_size"]);
    let lo = two.a.host.run(|| {
        let lo = Device::find("lo").expect("lo");
        Socket::bind(&umem, &lo, 0, &small().multi_buffer(true))
    });
    let lo = lo.expect("the host").expect("a socket");
    says(&program.insert(&lo).expect_err("elsewhere"), ErrorKind::Invalid, &["on lo", "eth0"]);
}

//! The borrowers in C, in Python and in Go: what they believe of the layout, and that they work
//! against the real lender.
//!
//! `PYTHON` in the environment names the interpreter, which needs numpy, and `GO` the Go command.

mod common;

use std::fmt::Write as _;
use std::io::IoSlice;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cachelane_lend::Distributor;
use cachelane_lend::layout::{
    BackHeader, Ending, GROUP_SHIFT, HELLO_MIRROR, Hello, LINE, LOAN_MORE, LOAN_SHARED,
    LOAN_STAMPED, Layout, Loan, MAGIC, Mapped, OutHeader, Status, VERSION_GROUPS, VERSIONS,
    Welcome,
};
use common::Rig;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept, bind, listen, recv, sendmsg, socket_with,
};
use zerocopy::{FromZeros as _, IntoBytes as _};

/// Everything that a client has to know: a name, and a number.
fn layout() -> Vec<(String, u64)> {
    fn size<T, F>(_: fn(&T) -> &F) -> usize {
        size_of::<F>()
    }
    let mut all: Vec<(String, u64)> = Vec::new();
    macro_rules! structs {
        ($($name:literal $type:ident { $($field:ident),* })*) => {$(
            all.push(($name.into(), size_of::<$type>() as u64));
            $(
                let field = concat!($name, ".", stringify!($field));
                all.push((field.into(), offset_of!($type, $field) as u64));
                let bytes = size(|it: &$type| &it.$field);
                all.push((format!("{field}.size"), bytes as u64));
            )*
        )*};
    }
    structs! {
        "hello" Hello { magic, version_min, version_max, flags, quota, name }
        "welcome" Welcome {
            magic, version, status, frame_size, frames, area_len, quota, slots, channels, flags,
            out_len, back_len, version_min, version_max, reserved, reason
        }
        "mapped" Mapped { magic }
        "loan" Loan { addr, len, token, flags, hash, time }
        "out" OutHeader { producer, closed, dropped, ended }
        "back" BackHeader { producer }
    }
    let rings = Layout { channels: 3, slots: 64 };
    let constants = [
        ("MAGIC", MAGIC.into()),
        ("VERSION_MIN", VERSIONS.0.into()),
        ("VERSION_MAX", VERSIONS.1.into()),
        ("VERSION_GROUPS", VERSION_GROUPS.into()),
        ("LINE", LINE as u64),
        ("SLOTS_MIN", Layout::SLOTS_MIN.into()),
        ("HELLO_MIRROR", HELLO_MIRROR.into()),
        ("GROUP_SHIFT", GROUP_SHIFT.into()),
        ("LOAN_MORE", LOAN_MORE.into()),
        ("LOAN_SHARED", LOAN_SHARED.into()),
        ("LOAN_STAMPED", LOAN_STAMPED.into()),
        ("ASLEEP", Layout::ASLEEP as u64),
        ("WELCOME", Status::Welcome as u64),
        ("VERSION", Status::Version as u64),
        ("INVALID", Status::Invalid as u64),
        ("FULL", Status::Full as u64),
        ("QUOTA", Status::Quota as u64),
        ("BUSY", Status::Busy as u64),
        ("MIRROR", Status::Mirror as u64),
        ("CLOSING", Status::Closing as u64),
        ("DENIED", Status::Denied as u64),
        ("UNSAID", Ending::Unsaid as u64),
        ("LENDER", Ending::Lender as u64),
        ("OFFENCE", Ending::Offence as u64),
        ("EVICTED", Ending::Evicted as u64),
        ("out_channel", rings.out_len() as u64),
        ("back_channel", rings.back_len() as u64),
    ];
    all.extend(constants.map(|(name, value)| (name.to_owned(), value)));
    all
}

/// A file that lists the layout, a name and a number on each line.
fn layout_in(dir: &Path) -> PathBuf {
    let list = dir.join("layout");
    let lines: String = layout().iter().map(|(name, value)| format!("{name} {value}\n")).collect();
    std::fs::write(&list, lines).expect("a file");
    list
}

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients").canonicalize().expect("clients")
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

/// Compiles C, with every warning an error.
fn compile(compiler: &str, source: &Path, to: &Path, language: &[&str]) {
    let warnings = ["-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"];
    let include = format!("-I{}", clients().join("c").display());
    let mut cc = Command::new(compiler);
    succeed(cc.args(language).args(warnings).arg(include).arg("-o").arg(to).arg(source));
}

/// Packets of two parts that [`lend_to`] lends.
const IN_TWO_PARTS: u64 = 100;

/// Bytes of each loan of [`lend_to`].
const BYTES: u64 = 60;

/// Lends to a program that is told the socket's path until it has given everything back, many
/// times, and ends the lender: what the program printed, and how many loans it had and how many
/// packets were dropped.
fn lend_to(private: bool, program: impl FnOnce(&Path) -> Command) -> (Output, u64, u64) {
    let mut rig = Rig::new(512, 2, |options| (options.quota, options.private) = (48, private));
    let mut command = program(&rig.socket);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    rig.until("it has joined", |rig| rig.distributors.iter().all(Distributor::is_wanted));
    for round in 0..100 {
        for distributor in 0..2 {
            // Now and then more than its quota, or two parts of one packet.
            let count = if round % 10 == 0 { 64 } else { 16 };
            let mut packets = rig.packets(0..count);
            packets[3].more = round % 2 == 0;
            rig.distributors[distributor].lend(&mut packets, &mut rig.cache);
        }
        rig.until("everything came back", |rig| rig.on_loan() == 0);
    }
    let counters = rig.lender.counters();
    assert_eq!(rig.lender.offences().total(), 0, "{counters:?}");
    assert!(counters.dropped > 0, "{counters:?}");
    rig.close();
    (child.wait_with_output().expect("it ends"), counters.lent, counters.dropped)
}

#[test]
fn the_document_has_the_same_layout() {
    let document = clients().join("../docs/lend-protocol.md");
    let document = std::fs::read_to_string(document).expect("the document");
    let mut heading = "";
    let mut said = Vec::new();
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match (line.strip_prefix("### "), &cells[..]) {
            (Some(text), _) => heading = text,
            (_, ["", status, name, _, ""]) if ["status", "ended"].contains(&heading) => {
                said.extend(status.parse().ok().map(|value| (name.to_string(), value)));
            }
            (_, ["", offset, bytes, field, _, ""]) => {
                let field = format!("{heading}.{field}");
                said.extend(offset.parse().ok().map(|offset| (field.clone(), offset)));
                said.extend(bytes.parse().ok().map(|bytes| (field + ".size", bytes)));
            }
            _ => {}
        }
    }
    let is_status = |name: &str| {
        name.chars().all(char::is_uppercase) && !["ASLEEP", "LINE", "MAGIC"].contains(&name)
    };
    let expected = layout().into_iter().filter(|(name, _)| name.contains('.') || is_status(name));
    let sorted = |mut all: Vec<(String, u64)>| {
        all.sort();
        all
    };
    assert_eq!(sorted(said), sorted(expected.collect()));
    // Its example of where things are.
    let rings = Layout { channels: 2, slots: 64 };
    let numbers = [rings.out_channel(1), rings.out_channel(1) + LINE, rings.out_len()];
    assert_eq!(numbers, [2176, 2304, 4352]);
    let numbers = [rings.back_channel(1), rings.back_channel(1) + LINE, rings.back_len()];
    assert_eq!(numbers, [512, 640, 896]);
}

#[test]
fn the_c_header_has_the_same_layout() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut source = String::from("#include \"cachelane_lend.h\"\n#include <stddef.h>\n");
    source += "#define P(name, value) printf(\"%s %llu\\n\", name, (unsigned long long)(value))\n";
    source += "int main(void)\n{\n";
    for (name, _) in layout() {
        let value = match name.split('.').collect::<Vec<_>>()[..] {
            [of, field, "size"] => format!("sizeof(((struct cachelane_{of} *)0)->{field})"),
            [of, field] => format!("offsetof(struct cachelane_{of}, {field})"),
            [name] if name.ends_with("channel") => format!("cachelane_{name}(64, 3)"),
            [name] if name.starts_with(char::is_lowercase) => {
                format!("sizeof(struct cachelane_{name})")
            }
            _ => format!("CACHELANE_{name}"),
        };
        writeln!(source, "\tP(\"{name}\", {value});").expect("a string");
    }
    source += "\treturn 0;\n}\n";
    let (file, program) = (dir.path().join("layout.c"), dir.path().join("layout"));
    std::fs::write(&file, source).expect("a file");
    compile("cc", &file, &program, &["-std=c11"]);
    let printed = succeed(&mut Command::new(&program)).stdout;
    let expected: Vec<String> =
        layout().iter().map(|(name, value)| format!("{name} {value}")).collect();
    assert_eq!(String::from_utf8(printed).unwrap().lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_c_header_is_also_cplusplus() {
    let dir = tempfile::tempdir().expect("a folder");
    let source = dir.path().join("borrower.cc");
    let text = "#include \"cachelane_lend.h\"\n\
                int main() { cachelane_borrower b; return cachelane_connect(&b, \"\", nullptr); }\n";
    std::fs::write(&source, text).expect("a file");
    // To an object, which needs no C++ library; and clang compiles C++ too.
    compile("clang", &source, &dir.path().join("borrower.o"), &["-x", "c++", "-std=c++11", "-c"]);
}

#[test]
fn the_c_example_counts_what_the_lender_lends() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("count");
    compile("cc", &clients().join("c/count.c"), &program, &["-std=c11"]);
    assert_counts(&program, "No such file or directory");
}

/// What follows the places for three is not written over by a fourth.
#[test]
fn the_c_client_takes_no_more_descriptors_than_it_has_places_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let (program, path) = (dir.path().join("count"), dir.path().join("lend"));
    let checked = ["-std=c11", "-fsanitize=address", "-g"];
    compile("cc", &clients().join("c/count.c"), &program, &checked);
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let listener = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&listener, &SocketAddrUnix::new(&path).expect("a path")).expect("an address");
    listen(&listener, 1).expect("a listener");
    let mut command = Command::new(&program);
    let child = command.arg(&path).stderr(Stdio::piped()).spawn().expect("it starts");
    let connection = accept(&listener).expect("a connection");
    recv(&connection, &mut [0; 64], RecvFlags::empty()).expect("a hello");
    let welcome = Welcome { magic: MAGIC, ..Welcome::new_zeroed() };
    let fds = [listener.as_fd(); 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    let bytes = [IoSlice::new(welcome.as_bytes())];
    sendmsg(&connection, &bytes, &mut control, SendFlags::empty()).expect("it is sent");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("out of step") && !said.contains("Sanitizer"), "{said}");
}

/// A program that counts what is lent to it, and says this where nobody lends.
fn assert_counts(program: &Path, alone: &str) {
    for private in [false, true] {
        let (output, loans, dropped) = lend_to(private, |socket| {
            let mut command = Command::new(program);
            command.arg(socket);
            command
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        assert_eq!(String::from_utf8(output.stdout).expect("text"), counted(loans, dropped));
    }

    let nobody = program.with_file_name("nobody");
    let refused = Command::new(program).arg(&nobody).output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said.contains(&format!("nobody: {alone}")), "{said}");
    assert_eq!(Command::new(program).output().expect("it runs").status.code(), Some(2));
}

/// What a program prints that has counted what [`lend_to`] lent it.
fn counted(loans: u64, dropped: u64) -> String {
    let (packets, bytes) = (loans - IN_TWO_PARTS, loans * BYTES);
    format!("{packets} packets, {bytes} bytes, {dropped} dropped\n")
}

/// A Python that has numpy, in the folder of the package.
fn python() -> Command {
    let own = std::env::var("PYTHON").ok();
    let mut candidates = own.iter().map(String::as_str).chain(["python3", "/usr/bin/python3"]);
    let has_numpy = |python: &&str| {
        let tried = Command::new(python).args(["-c", "import numpy"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let python = candidates.find(has_numpy);
    let mut command = Command::new(python.expect("a python3 with numpy; see scripts/deps build"));
    command.current_dir(clients().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// What unittest says at the end if every test was run, and succeeded.
fn assert_ok(output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.ends_with("\nOK\n"), "{said}");
}

#[test]
fn the_python_package_has_the_same_layout_and_passes_its_own_tests() {
    let dir = tempfile::tempdir().expect("a folder");
    let list = layout_in(dir.path());
    let tests = ["-m", "unittest", "tests.test_layout", "tests.test_borrower"];
    assert_ok(&succeed(python().args(tests).env("CACHELANE_LAYOUT", &list)));
}

#[test]
fn the_python_borrower_receives_what_the_lender_lends() {
    for private in [false, true] {
        let (output, loans, dropped) = lend_to(private, |socket| {
            let mut command = python();
            command.args(["-m", "unittest", "tests.test_live"]).env("CACHELANE_LENDER", socket);
            command
        });
        assert_ok(&output);
        assert_eq!(String::from_utf8(output.stdout).expect("text"), counted(loans, dropped));
    }
}

/// The Go command in the folder of the module. It needs no network and no C compiler, and what it
/// builds is kept under target.
fn go() -> Command {
    let own = std::env::var("GO").ok();
    let mut candidates = own.iter().map(String::as_str).chain(["go", "/usr/local/go/bin/go"]);
    let is_there = |go: &&str| Command::new(go).arg("version").output().is_ok();
    let go = candidates.find(is_there);
    let mut command = Command::new(go.expect("Go 1.19 or later; see scripts/deps build"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    command.current_dir(clients().join("go"));
    command.env("GOCACHE", folder.join("go-build")).env("GOPATH", folder.join("go"));
    for (name, value) in [
        ("CGO_ENABLED", "0"),
        ("GOENV", "off"),
        ("GOFLAGS", ""),
        ("GOPROXY", "off"),
        ("GOTOOLCHAIN", "local"),
        ("GOWORK", "off"),
    ] {
        command.env(name, value);
    }
    command
}

#[test]
fn the_go_package_has_the_same_layout_and_passes_its_own_tests() {
    let dir = tempfile::tempdir().expect("a folder");
    succeed(go().args(["vet", "./..."]));
    let list = layout_in(dir.path());
    let mut tests = go();
    tests.args(["test", "-count=1", "-v", "."]).env("CACHELANE_LAYOUT", &list);
    let output = tests.output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    // The one that needs a lender.
    assert_eq!(printed.matches("--- SKIP").count(), 1, "{printed}");
}

#[test]
fn the_go_borrower_receives_what_the_lender_lends() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("tests");
    succeed(go().args(["test", "-c", "-o"]).arg(&program).arg("."));
    for private in [false, true] {
        let (output, loans, dropped) = lend_to(private, |socket| {
            let mut command = Command::new(&program);
            let one = "-test.run=^TestEverythingThatIsLentIsReceivedAndGivenBack$";
            command.arg(one).env("CACHELANE_LENDER", socket);
            command
        });
        let said = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{said}");
        assert_eq!(said, counted(loans, dropped) + "PASS\n");
    }
}

#[test]
fn the_go_example_counts_what_the_lender_lends() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = dir.path().join("count");
    succeed(go().args(["build", "-o"]).arg(&program).arg("./examples/count"));
    assert_counts(&program, "there is no such socket");
}

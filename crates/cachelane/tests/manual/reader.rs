//! A reader of the manual: a shell on a test host that has the devices, names and backends that the
//! pages write of, in which the commands of a page are typed one after the other.
//!
//! The shell has mounts of its own. What commands write to `/etc`, `/run`, `/tmp` and the like is gone with
//! it, and so are the services that it has started: the kernel ends them when it ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use lab::testing::no_bridge_calls;
use lab::{Host, Lab, Process};

use crate::common::PROGRAM;

/// The longest that a command may take, and a service until it is ready or has ended.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Reader {
    /// Its end is the end of all that it has started.
    _shell: Process,
    stdin: ChildStdin,
    said: Receiver<String>,
    services: Vec<Service>,
    typed: usize,
    host: Host,
    lab: Lab,
}

/// What a command has come to.
pub(crate) struct Outcome {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command that runs until it is told to end.
struct Service {
    number: usize,
    pid: String,
    place: String,
    /// What no two services can have at a time: a device, an address to listen on.
    claims: Vec<String>,
    is_ours: bool,
}

impl Reader {
    pub(crate) fn new() -> Reader {
        let lab = Lab::new("manual").expect("a lab");
        let host = network(&lab);
        let dir = lab.dir().to_str().expect("a path of text").to_owned();
        let shell = host.command("unshare");
        let shell = shell.args(["--mount", "--"]);
        let shell = shell.args(["bash", "-c", include_str!("stage.sh"), "stage.sh", &dir, PROGRAM]);
        let mut shell =
            shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let stdin = shell.pipes().stdin.take().expect("a pipe");
        let lines = BufReader::new(shell.pipes().stdout.take().expect("a pipe")).lines();
        let (say, said) = mpsc::channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| say.send(line)));
        let reader =
            Reader { _shell: shell, stdin, said, services: Vec::new(), typed: 0, host, lab };
        assert_eq!(reader.hears(LIMIT).as_deref(), Some("ready"), "the stage is set");
        reader
    }

    /// Puts a file where a page says that it is.
    pub(crate) fn write(&mut self, path: &str, text: &str) {
        fs::write(self.lab.dir().join("file"), text).expect("a file");
        self.ask(&format!("install -D -m 644 /mnt/file '{path}'; echo $?"), path);
    }

    /// Runs a command to its end.
    pub(crate) fn run(&mut self, place: &str, command: &str, is_root: bool) -> Outcome {
        let number = self.put(command);
        let line =
            format!("{} </dev/null >/mnt/{number}.out 2>/mnt/{number}.err", by(number, is_root));
        let status = self.ask(&format!("{line}; echo $?"), place);
        let status = status.parse().unwrap_or_else(|_| panic!("{place}: a status, not {status}"));
        Outcome { status, stdout: self.file(number, "out"), stderr: self.file(number, "err") }
    }

    /// Starts a command in the background, and waits until it says that it is ready or, if it is not
    /// ours, until `ready` holds, which is a command.
    pub(crate) fn start(
        &mut self,
        place: &str,
        command: &str,
        is_root: bool,
        ready: Option<&str>,
    ) -> Result<(), String> {
        let claims = claims(command);
        while let Some(at) = self
            .services
            .iter()
            .position(|one| one.claims.iter().any(|claim| claims.contains(claim)))
        {
            let service = self.services.remove(at);
            self.end_one(&service)?;
        }
        let number = self.put(&format!("setpriv --pdeathsig KILL -- {command} &"));
        let notify = self.notify_socket(number);
        let files = format!("</dev/null >/mnt/{number}.out 2>/mnt/{number}.err");
        let line = match is_root {
            true => format!(". /mnt/{number}.sh {files}"),
            false => {
                self.put_as(number, &format!("exec {command}"));
                format!("{} {files} &", by(number, false))
            }
        };
        let line =
            format!("export NOTIFY_SOCKET=@manual-{number}; {line}\nunset NOTIFY_SOCKET; echo $!");
        let pid = self.ask(&line, place);
        let is_ours = ready.is_none();
        self.services.push(Service { number, pid, place: place.into(), claims, is_ours });
        match ready {
            None => self.hears_ready(&notify, number, place),
            Some(ready) => self.comes_true(ready, place),
        }
    }

    /// What the service that was started last has printed so far.
    pub(crate) fn printed(&self) -> String {
        let number = self.services.last().map_or(0, |service| service.number);
        format!("{}{}", self.file(number, "err"), self.file(number, "out"))
    }

    /// Ends all that runs, the last first, as Ctrl-C does; what does not end well.
    pub(crate) fn end(mut self) -> Vec<String> {
        let services = std::mem::take(&mut self.services);
        services.iter().rev().filter_map(|service| self.end_one(service).err()).collect()
    }

    fn end_one(&mut self, service: &Service) -> Result<(), String> {
        let Service { pid, place, is_ours, .. } = service;
        if *is_ours {
            let status = self.ask(
                &format!(
                    "kill -CONT {pid} 2>/dev/null; kill -INT {pid} 2>/dev/null; wait -f {pid}; echo $?"
                ),
                place,
            );
            let log = self.file(service.number, "err");
            if status != "0" {
                return Err(format!("{place}: status {status} after Ctrl-C\n{log}"));
            }
        } else {
            self.ask(&format!("kill -- -{pid} 2>/dev/null; wait -f {pid}; echo $?"), place);
        }
        Ok(())
    }

    fn put(&mut self, command: &str) -> usize {
        self.typed += 1;
        self.put_as(self.typed, command);
        self.typed
    }

    fn put_as(&self, number: usize, command: &str) {
        fs::write(self.lab.dir().join(format!("{number}.sh")), format!("{command}\n"))
            .expect("a file");
    }

    fn file(&self, number: usize, what: &str) -> String {
        let bytes = fs::read(self.lab.dir().join(format!("{number}.{what}"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Types a line into the shell; what that says.
    fn ask(&mut self, line: &str, place: &str) -> String {
        writeln!(self.stdin, "{line}")
            .unwrap_or_else(|error| panic!("{place}: the shell: {error}"));
        let said = self.hears(LIMIT);
        said.unwrap_or_else(|| panic!("{place}: it did not end within {LIMIT:?}"))
    }

    fn hears(&self, limit: Duration) -> Option<String> {
        self.said.recv_timeout(limit).ok()
    }

    /// Where a service says that it is ready, as a service manager has it.
    fn notify_socket(&self, number: usize) -> UnixDatagram {
        let name = format!("manual-{number}");
        let bind = || UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?);
        let socket = self.host.run(bind).expect("the host").expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        socket
    }

    fn hears_ready(&self, notify: &UnixDatagram, number: usize, place: &str) -> Result<(), String> {
        let until = Instant::now() + LIMIT;
        let mut text = [0; 4096];
        while Instant::now() < until {
            let length = notify.recv(&mut text).unwrap_or(0);
            if String::from_utf8_lossy(&text[..length]).lines().any(|line| line == "READY=1") {
                return Ok(());
            }
            let is_failure =
                |line: &str| line.starts_with("cachelane: ") || line.starts_with("error: ");
            if self.file(number, "err").lines().any(is_failure) {
                break;
            }
        }
        let (out, log) = (self.file(number, "out"), self.file(number, "err"));
        Err(format!("{place}: it did not start\n{out}{log}"))
    }

    fn comes_true(&mut self, condition: &str, place: &str) -> Result<(), String> {
        let until = Instant::now() + LIMIT;
        while self.ask(&format!("{condition} >/dev/null 2>&1; echo $?"), place) != "0" {
            if Instant::now() > until {
                return Err(format!("{place}: never ready: {condition}"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// What runs a command's file: the shell itself, or a user without privileges.
fn by(number: usize, is_root: bool) -> String {
    match is_root {
        true => format!(". /mnt/{number}.sh"),
        false => format!(
            "setpriv --pdeathsig KILL --reuid reader --regid reader --init-groups -- \
             env HOME=/tmp USER=reader bash -c \"$(cat /mnt/{number}.sh)\""
        ),
    }
}

/// What no two services can have at a time. A reader with one borrower after the other stays within what a user
/// may borrow.
fn claims(command: &str) -> Vec<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    let listens = words.windows(2).filter(|pair| pair[0] == "--listen").map(|pair| pair[1]);
    let devices = words.iter().copied().filter(|word| word.starts_with("eth"));
    let alone =
        words.iter().copied().filter(|word| ["bridge", "metrics", "up", "borrow"].contains(word));
    listens.chain(devices).chain(alone).map(Into::into).collect()
}

/// A host with the devices that pages name: eth0, whose packets come as from a wire and by two queues, and
/// veth0, whose packets do not; eth1 and eth2, at which a neighbour is that has the backends; and the bridges
/// br0, with ports of several sorts, and docker0.
fn network(lab: &Lab) -> Host {
    let [own, neighbour] = ["reader", "neighbour"].map(|name| lab.host(name).expect("a host"));
    let ip = |host: &Host, line: &str| {
        host.ip(line.split(' ')).unwrap_or_else(|error| panic!("ip {line}: {error}"));
    };
    let run = |program: &str, line: &str| {
        let ran = own.command(program).args(line.split(' ')).run();
        ran.unwrap_or_else(|error| panic!("{program} {line}: {error}"));
    };
    ip(&own, "link add eth0 numrxqueues 2 numtxqueues 2 type veth peer name e0");
    ip(&own, "link add veth0 type veth peer name e1");
    for device in ["eth0", "e0"] {
        run("ethtool", &format!("-K {device} tso off gso off gro off tx off"));
    }
    for device in ["eth0", "e0", "veth0", "e1"] {
        ip(&own, &format!("link set {device} up"));
    }
    // The host's next devices are eth1 and eth2.
    for number in 1..=2 {
        let [there, here] = [format!("eth{number}"), format!("eth{number}")];
        let path = neighbour.namespace_path().expect("a test host");
        ip(&own, &format!("link add {here} type veth peer name {there} netns {}", path.display()));
        ip(&own, &format!("address add 10.{number}.0.1/24 dev {here}"));
        ip(&own, &format!("link set {here} up"));
        ip(&neighbour, &format!("link set {there} up"));
    }
    ip(&own, "address add 10.0.0.1/24 dev eth2");
    for last in 5..8 {
        ip(&neighbour, &format!("address add 10.0.0.{last}/24 dev eth2"));
    }
    serve(&neighbour);
    for (bridge, ports) in
        [("br0", ["web", "db", "vethweb"]), ("docker0", ["veth1", "veth2", "veth3"])]
    {
        ip(&own, &format!("link add {bridge} type bridge"));
        ip(&own, &format!("link set {bridge} up"));
        for port in ports {
            let member = lab.host(port).expect("a host");
            let path = member.namespace_path().expect("a test host");
            ip(&own, &format!("link add {port} type veth peer name eth0 netns {}", path.display()));
            ip(&member, "link set eth0 up");
            ip(&own, &format!("link set {port} master {bridge} up"));
        }
    }
    run("tc", "qdisc add dev db root pfifo");
    ip(&own, "link add vx0 type vxlan id 1 dstport 4789 local 10.2.0.1");
    run("ethtool", "-K vx0 tx off");
    ip(&own, "link set vx0 master br0 up");
    no_bridge_calls(&own);
    own
}

/// A web server at port 80 of all backends: one page, then the end.
fn serve(host: &Host) {
    let bind = || TcpListener::bind("0.0.0.0:80");
    let listener = host.run(bind).expect("the host").expect("a port");
    // It ends with the test program, like the host.
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = client.set_read_timeout(Some(Duration::from_secs(5)));
                let mut request = [0; 4096];
                if client.read(&mut request).is_ok_and(|length| length > 0) {
                    // One that has gone needs no answer.
                    let _ =
                        client.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
                }
            });
        }
    });
}

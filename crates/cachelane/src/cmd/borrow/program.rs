//! `cachelane borrow PATH -- COMMAND`: a program that uses libpcap, as it comes, on what a lender lends.
//!
//! The command carries a library that stands in front of libpcap (`clients/pcap`). It is put into a memory
//! file, which the loader is told to load first into the program, which takes this process's place.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, anyhow};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::Args;
use crate::exit::usage;

/// The library: `build.rs` makes it.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libcachelane-pcap.so"));

/// Where the library finds which lender the device `cachelane` is.
const DEVICE: &str = "CACHELANE_LEND";
const PRELOAD: &str = "LD_PRELOAD";
/// The library's descriptor is at least this.
const HIGH: i32 = 200;
/// The longest path of a socket.
const PATH_MOST: usize = 107;

/// Runs the program in place of this process; comes back only if that fails.
pub(super) fn run(args: &Args) -> anyhow::Result<std::convert::Infallible> {
    let device = device(args)?;
    let (program, rest) = args.command.split_first().context("no command")?;
    if let Some(path) = found(program) {
        may_be_told(&path)?;
    }
    let library = library().context("cannot make a file in memory")?;
    // By this process, which becomes the program: what that starts finds it too, as long as it is there.
    let path = format!("/proc/{}/fd/{}", std::process::id(), library.as_raw_fd());
    let mut preload = OsString::from(path);
    if let Some(before) = std::env::var_os(PRELOAD).filter(|before| !before.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    let mut command = Command::new(program);
    let error = command.args(rest).env(PRELOAD, preload).env(DEVICE, device).exec();
    Err(anyhow!(error).context(format!("cannot run {}", program.display())))
}

/// The lender and what to ask it for, as the library reads it.
fn device(args: &Args) -> anyhow::Result<OsString> {
    let socket = &args.socket;
    match fs::metadata(socket) {
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(usage(format!("{} is no socket (expected a lender's)", socket.display())));
        }
        // It is waited for.
        Err(error) if args.reconnect && error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("no lender at {}", socket.display()));
        }
        Ok(_) => {}
    }
    let name = args.name.as_deref().unwrap_or_default();
    let socket = std::path::absolute(socket)?;
    if socket.as_os_str().len() > PATH_MOST {
        let path = socket.display();
        return Err(usage(format!("{path} is too long (expected at most {PATH_MOST} bytes)")));
    }
    let texts = [socket.as_os_str(), OsStr::new(name)];
    if texts.iter().any(|text| text.as_encoded_bytes().contains(&b',')) {
        return Err(usage(format!(
            "{} {name}: a path or --name with a comma cannot be told to a program",
            socket.display()
        )));
    }
    let mut device = socket.into_os_string();
    match args.group {
        Some(group) => device.push(format!(",group={group}")),
        None => device.push(if args.share { ",share" } else { ",mirror" }),
    }
    if args.reconnect {
        device.push(",reconnect");
    }
    if let Some(quota) = args.quota {
        device.push(format!(",quota={quota}"));
    }
    if !name.is_empty() {
        device.push(format!(",name={name}"));
    }
    Ok(device)
}

/// The library in a file of its own, which stays open in the program.
fn library() -> std::io::Result<File> {
    let file = memfd_create("libcachelane-pcap.so", MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(file);
    file.write_all(LIBRARY)?;
    let all = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, all)?;
    // Shells and programs use the low descriptors for something else.
    let file = rustix::io::fcntl_dupfd_cloexec(&file, HIGH).map_or(file, File::from);
    // It stays open in the program.
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())?;
    Ok(file)
}

/// The file that such a command runs.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Refuses a program into which the loader preloads nothing: one with more privileges than this process.
fn may_be_told(path: &Path) -> anyhow::Result<()> {
    let why = match fs::metadata(path) {
        Err(_) => return Ok(()),
        Ok(meta) if meta.permissions().mode() & 0o6000 != 0 => "is setuid or setgid",
        Ok(_) if has_capabilities(path) => "has file capabilities",
        Ok(_) => return Ok(()),
    };
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(usage(format!(
        "{} {why}, so that nothing can be loaded into it: copy it, and run the copy, which needs no \
         privileges to borrow",
        path.display()
    )))
}

fn has_capabilities(path: &Path) -> bool {
    let mut value = [0; 64];
    rustix::fs::getxattr(path, "security.capability", &mut value[..]).is_ok()
}

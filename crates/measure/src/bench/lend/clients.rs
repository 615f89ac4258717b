//! Borrowers in other languages: the clients of the repository, which this program carries.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::bench::peer::{Builder, LEND_READER};

/// The package in Python.
const PACKAGE: [(&str, &str); 5] = [
    ("__init__.py", include_str!("../../../../../clients/python/cachelane_lend/__init__.py")),
    ("_borrower.py", include_str!("../../../../../clients/python/cachelane_lend/_borrower.py")),
    ("_connect.py", include_str!("../../../../../clients/python/cachelane_lend/_connect.py")),
    ("_fence.py", include_str!("../../../../../clients/python/cachelane_lend/_fence.py")),
    ("_layout.py", include_str!("../../../../../clients/python/cachelane_lend/_layout.py")),
];

/// A borrower in Python that reads what the others read: a batch is one numpy expression.
const SCRIPT: &str = include_str!("clients/reader.py");

/// How a borrower is started.
#[derive(Clone, Debug)]
pub(super) enum Client {
    /// `cachelane borrow`.
    Rust,
    /// A program and its arguments, before the socket's path.
    Program(Vec<String>),
}

impl Client {
    /// Borrows from the lender at this socket, with so many workers, who read every byte; the
    /// clients in other languages have one.
    pub(super) fn command(&self, socket: &Path, workers: usize) -> anyhow::Result<Command> {
        let mut command = match self {
            Client::Rust => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["--quiet", "borrow", "--worker", &workers.to_string()]);
                command
            }
            Client::Program(args) => {
                let mut command = Command::new(&args[0]);
                command.args(&args[1..]);
                command
            }
        };
        command.arg(socket);
        Ok(command)
    }
}

/// A borrower in each language, or why there is none.
pub(super) fn clients(
    builder: &Builder,
    dir: &Path,
) -> [(&'static str, Result<Client, String>); 3] {
    let c = builder.build(&LEND_READER);
    let c = c.map(|binary| Client::Program(vec![binary.display().to_string()]));
    [("rust", Ok(Client::Rust)), ("c", c), ("python", python(dir))]
}

fn python(dir: &Path) -> Result<Client, String> {
    let has_numpy = |python: &&str| {
        let tried = Command::new(python).args(["-c", "import numpy"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let found = ["python3", "/usr/bin/python3"].into_iter().find(has_numpy);
    let python = found.ok_or("no python3 with numpy (make peers)")?;
    let write = || -> std::io::Result<String> {
        let package = dir.join("cachelane_lend");
        fs::create_dir_all(&package)?;
        for (name, text) in PACKAGE {
            fs::write(package.join(name), text)?;
        }
        let script = dir.join("reader.py");
        fs::write(&script, SCRIPT)?;
        Ok(script.display().to_string())
    };
    let script = write().map_err(|error| format!("cannot write the package: {error}"))?;
    Ok(Client::Program(vec![python.into(), script]))
}

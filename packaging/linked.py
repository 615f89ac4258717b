"""What is linked into the command, as cargo tells: for the copyright file and for the bill of materials."""

import json
import re
import subprocess


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def crates():
    """The crates in the command, itself among them, by name and version: those that each depends on."""
    command = "cargo tree --locked -p cachelane -e normal,no-proc-macro --prefix depth --format"
    found, above = {}, []
    for line in run(*command.split(), " {p}").splitlines():
        depth, name, version = line.split()[:3]
        key = name, version.removeprefix("v")
        found.setdefault(key, set())
        del above[int(depth):]
        if above:
            found[above[-1]].add(key)
        above.append(key)
    return found


def packages():
    """What cargo knows of all crates for this machine, by name and version."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host()]
    metadata = json.loads(run(*command))
    return {(package["name"], package["version"]): package for package in metadata["packages"]}


def host():
    return re.search("^host: (.*)$", run("rustc", "-vV"), re.M)[1]

"""Runs a command as root of a user namespace of its own, with its own network and mounts, where /sys/fs/bpf is
a BPF file system whose tokens allow all: in_user_namespace.py COMMAND ARGS… (needs root)"""

import ctypes
import os
import socket
import sys

libc = ctypes.CDLL(None, use_errno=True)
# The same on all architectures.
MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT = 429, 430, 431, 432
SET_STRING, CREATE, FROM_EMPTY_PATH, AT_FDCWD = 1, 6, 4, -100
NEW_USER, NEW_MOUNTS, NEW_NETWORK = 0x10000000, 0x20000, 0x40000000


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def call(number, *args):
    return checked(libc.syscall(number, *args))


def inside(outside, command):
    checked(libc.unshare(NEW_USER | NEW_MOUNTS | NEW_NETWORK))
    outside.send(b"?")
    outside.recv(1)
    # It belongs to the user namespace of whoever opens it, and who delegates must have the host's.
    socket.send_fds(outside, [b"?"], [call(FSOPEN, b"bpf", 0)])
    _, [mount], _, _ = socket.recv_fds(outside, 1, 1)
    call(MOVE_MOUNT, mount, b"", AT_FDCWD, b"/sys/fs/bpf", FROM_EMPTY_PATH)
    os.execvp(command[0], command)


def main(command):
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        inside(there, command)
    there.close()
    here.recv(1)
    for name, text in [("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")]:
        with open(f"/proc/{child}/{name}", "w") as file:
            file.write(text)
    here.send(b"!")
    _, [files], _, _ = socket.recv_fds(here, 1, 1)
    for what in ["cmds", "maps", "progs", "attachs"]:
        call(FSCONFIG, files, SET_STRING, f"delegate_{what}".encode(), b"any", 0)
    call(FSCONFIG, files, CREATE, None, None, 0)
    socket.send_fds(here, [b"!"], [call(FSMOUNT, files, 0, 0)])
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


sys.exit(main(sys.argv[1:]))

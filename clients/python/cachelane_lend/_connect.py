"""The borrower's side of the handshake, and what it checks before it maps anything."""

import array
import fcntl
import mmap
import os
import socket
import struct
import time
from typing import Any, List, NamedTuple, Optional, Tuple

import numpy as np

from . import _layout as layout

F_GET_SEALS = getattr(fcntl, "F_GET_SEALS", 1034)
F_SEAL_SHRINK = getattr(fcntl, "F_SEAL_SHRINK", 2)


class LendError(Exception):
    """What can go wrong between a borrower and a lender, beside what the system reports."""


class Refused(LendError):
    """The lender refused the borrower; ``status`` says why, as a number."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ProtocolError(LendError):
    """What the other side said or wrote makes no sense."""


class Gone(LendError):
    """The lender was killed, or has disconnected this borrower; ``why`` says which."""

    def __init__(self, why: layout.Ending) -> None:
        super().__init__(_WHY[why])
        self.why = why


_WHY = {
    layout.Ending.UNSAID: "the lender is gone and said nothing: it was killed, or it crashed",
    layout.Ending.OFFENCE: "the lender has disconnected us, for what we did",
    layout.Ending.EVICTED: "the lender has disconnected us: we had our quota, and returned "
    "nothing for too long (lend --evict-after)",
}


class Connection(NamedTuple):
    """What a handshake gives."""

    socket: socket.socket
    welcome: Any
    area: mmap.mmap
    out: mmap.mmap
    back: mmap.mmap


class Wish(NamedTuple):
    """What a borrower asks for."""

    name: str
    quota: int
    mirror: bool
    group: int


_PAUSE = 0.1
"""Seconds until a lender is tried again."""


def connect(path: str, wish: Wish, timeout: float, patience: Optional[float]) -> Connection:
    """Connects, and goes on trying for as long as that where there is no lender, or no room."""
    hello = _hello(wish)
    until = None if patience is None else time.monotonic() + patience
    while True:
        try:
            return _connect(path, hello, timeout)
        except (FileNotFoundError, ConnectionRefusedError, TimeoutError, Refused) as error:
            may_pass = not isinstance(error, Refused) or error.status in _FOR_NOW
            if not may_pass or (until is not None and time.monotonic() >= until):
                raise
        time.sleep(_PAUSE)


_FOR_NOW = (
    -1,
    layout.Status.FULL,
    layout.Status.QUOTA,
    layout.Status.BUSY,
    layout.Status.CLOSING,
)


def _connect(path: str, hello: bytes, timeout: float) -> Connection:
    """Connects, says hello, and maps what the lender hands out."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fds: List[int] = []
    try:
        # The time to connect in is bounded by this; a connect that does not block would fail
        # where the lender has too many to accept.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(timeout))
        try:
            connection.connect(path)
        except BlockingIOError:
            raise _timed_out(path, "accept", timeout) from None
        except OSError as error:
            # As it is, but with the path in it.
            raise OSError(error.errno, error.strerror, path) from None
        try:
            connection.send(hello)
        except (BrokenPipeError, ConnectionResetError):
            pass  # It closed already; perhaps it said why.
        until = time.monotonic() + timeout
        message, fds = _answer(connection, path, until, timeout)
        welcome = _check(message, path)
        if len(fds) != 3:
            raise ProtocolError(f"{path}: {_ODD} {len(fds)} descriptors")
        names = ("area", "out", "back")
        lens = [int(welcome[name + "_len"]) for name in names]
        writes = (False, False, True)
        area, out, back = (_map(path, *each) for each in zip(names, fds, lens, writes))
        # To map takes as long as the area is large.
        _join(connection, path, time.monotonic() + timeout, timeout)
        return Connection(connection, welcome, area, out, back)
    except BaseException:
        connection.close()
        raise
    finally:
        for fd in fds:
            os.close(fd)


_ODD = "that is no lender, or one that is out of step: it sent"


def _hello(wish: Wish) -> bytes:
    name, quota, mirror, group = wish
    encoded = (name or _own_name()).encode()
    if len(encoded) > 48 or b"\0" in encoded:
        raise ValueError(f"the name {name!r}: expected at most 48 bytes, none of them zero")
    if not 0 <= quota < 1 << 32:
        raise ValueError(f"a quota of {quota}: expected from 0 to {(1 << 32) - 1}")
    if not 0 <= group < 1 << 16:
        raise ValueError(f"group {group}: expected from 0 to {(1 << 16) - 1}")
    if mirror and group:
        raise ValueError(f"a mirror in group {group}: a mirror gets everything, and is in no group")
    hello = np.zeros((), layout.HELLO)
    hello["magic"] = layout.MAGIC
    hello["version_min"], hello["version_max"] = layout.VERSIONS
    if group:
        hello["version_min"] = layout.VERSION_GROUPS
    hello["flags"] = (layout.HELLO_MIRROR if mirror else 0) | group << layout.GROUP_SHIFT
    hello["quota"] = quota
    hello["name"] = encoded
    return hello.tobytes()


def _own_name() -> str:
    with open("/proc/self/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def _timeval(seconds: float) -> bytes:
    # Zero would be for ever.
    microseconds = max(int(seconds * 1e6), 1)
    return struct.pack("@ll", *divmod(microseconds, 1_000_000))


def _timed_out(path: str, what: str, timeout: float) -> TimeoutError:
    return TimeoutError(f"{path}: the lender did not {what} within {timeout} s")


def _join(connection: socket.socket, path: str, until: float, timeout: float) -> None:
    """Says that all is mapped, and waits until the lender lends to us."""
    try:
        connection.send(np.array((layout.MAGIC,), layout.MAPPED).tobytes())
    except (BrokenPipeError, ConnectionResetError):
        pass  # It closed already; perhaps it is about to end.
    connection.settimeout(max(until - time.monotonic(), 1e-6))
    try:
        woken = connection.recv(16)
    except ConnectionResetError:
        woken = b""
    except (socket.timeout, BlockingIOError):
        raise _timed_out(path, "take us in", timeout) from None
    if not woken:
        raise Refused(f"{path}: the lender closed the connection and did not say why", -1)


def _answer(
    connection: socket.socket, path: str, until: float, timeout: float
) -> Tuple[bytes, List[int]]:
    resets = 0
    while True:
        connection.settimeout(max(until - time.monotonic(), 1e-6))
        try:
            message, fds, flags = _receive(connection)
            break
        except ConnectionResetError:
            # A lender that closes before it has read our hello; what it said comes after that.
            resets += 1
            if resets > 1:
                raise
        except (socket.timeout, BlockingIOError):
            raise _timed_out(path, "answer", timeout) from None
    size = layout.WELCOME.itemsize
    if len(message) == size and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        return message, fds
    for fd in fds:
        os.close(fd)
    if not message:
        raise Refused(f"{path}: the lender closed the connection and did not say why", -1)
    raise ProtocolError(f"{path}: {_ODD} an answer of another size")


def _receive(connection: socket.socket) -> Tuple[bytes, List[int], int]:
    # As socket.recv_fds, which lets the descriptors be inherited.
    fds = array.array("i")
    space = socket.CMSG_SPACE(3 * fds.itemsize)
    message, ancillary, flags, _ = connection.recvmsg(
        layout.WELCOME.itemsize, space, socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds), flags


def _check(message: bytes, path: str) -> Any:
    """Whether it is a welcome, and all numbers in it go together."""
    welcome = np.frombuffer(message, layout.WELCOME)[0]
    if welcome["magic"] != layout.MAGIC:
        raise ProtocolError(f"{path}: {_ODD} an answer that does not start as a lender's")
    if welcome["status"] != layout.Status.WELCOME:
        reason = _printable(bytes(welcome["reason"])) or f"status {welcome['status']}"
        raise Refused(f"{path}: the lender refuses: {reason}", int(welcome["status"]))
    if not layout.VERSIONS[0] <= welcome["version"] <= layout.VERSIONS[1]:
        raise ProtocolError(f"{path}: {_ODD} version {welcome['version']}")
    numbers = ("frames", "frame_size", "slots", "channels", "quota")
    frames, frame_size, slots, channels, quota = (int(welcome[name]) for name in numbers)
    if frames == 0 or not _is_power_of_two(frame_size):
        raise ProtocolError(f"{path}: {_ODD} {frames} frames of {frame_size} bytes")
    are_slots = _is_power_of_two(slots) and layout.SLOTS_MIN <= slots <= 1 << 24
    if not are_slots or not 1 <= channels <= 1 << 12 or not 1 <= quota <= slots:
        what = f"{channels} channels of {slots} slots for {quota} loans"
        raise ProtocolError(f"{path}: {_ODD} {what}")
    for name, needed in (
        ("area_len", frames * frame_size),
        ("out_len", layout.out_channel(slots, channels)),
        ("back_len", layout.back_channel(slots, channels)),
    ):
        if welcome[name] < needed:
            what = f"{welcome[name]} bytes of memory where {needed} are needed"
            raise ProtocolError(f"{path}: {_ODD} {what}")
    return welcome


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _printable(reason: bytes) -> str:
    text = reason.decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text)


def _map(path: str, name: str, fd: int, length: int, write: bool) -> mmap.mmap:
    """Maps memory that cannot shrink, so that reading it cannot fail."""
    try:
        seals: Optional[int] = fcntl.fcntl(fd, F_GET_SEALS)
    except OSError:
        seals = None
    if seals is None or not seals & F_SEAL_SHRINK:
        raise ProtocolError(f"{path}: {_ODD} the memory '{name}', which is not sealed")
    if os.fstat(fd).st_size < length:
        what = f"the memory '{name}' with fewer than {length} bytes"
        raise ProtocolError(f"{path}: {_ODD} {what}")
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
    return mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=prot)

"""A lender made by hand, which can be out of step, for the tests of the borrower."""

import fcntl
import mmap
import os
import socket
import tempfile
import threading
from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from cachelane_lend import _layout as layout

F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2
FRAMES, FRAME, SLOTS, CHANNELS, QUOTA = 16, 2048, 32, 2, 24


def memory(length: int, seal: bool = True) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, length)
    if seal:
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    return fd


class Lender:
    """Answers one connection on a socket of its own, in a thread."""

    def __init__(self, change: Optional[Callable[["Lender"], None]] = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.folder.name, "lend")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(1)
        lengths = (
            FRAMES * FRAME,
            layout.out_channel(SLOTS, CHANNELS),
            layout.back_channel(SLOTS, CHANNELS),
        )
        self.fds: List[int] = [memory(length) for length in lengths]
        self.area, self.out, self.back = (mmap.mmap(*each) for each in zip(self.fds, lengths))
        # One in each channel, as the lender writes them.
        self.next = [0] * CHANNELS
        self.taken = [0] * CHANNELS
        self.woken = 0
        self.welcome = np.zeros((), layout.WELCOME)
        for name, value in {
            "magic": layout.MAGIC,
            "version": 2,
            "frame_size": FRAME,
            "frames": FRAMES,
            "area_len": lengths[0],
            "quota": QUOTA,
            "slots": SLOTS,
            "channels": CHANNELS,
            "out_len": lengths[1],
            "back_len": lengths[2],
            "version_min": 2,
            "version_max": 2,
        }.items():
            self.welcome[name] = value
        self.hello: Any = None
        self.connection: Optional[socket.socket] = None
        if change:
            change(self)
        self.thread = threading.Thread(target=self.answer)
        self.thread.start()

    def answer(self) -> None:
        connection, _ = self.listener.accept()
        self.hello = np.frombuffer(connection.recv(1024), layout.HELLO)[0]
        self.welcome["flags"] = self.hello["flags"]
        socket.send_fds(connection, [self.welcome.tobytes()], self.fds)
        self.connection = connection
        # Nothing, if it has not liked what it got.
        mapped = connection.recv(1024)
        if mapped:
            assert np.frombuffer(mapped, layout.MAPPED)["magic"] == [layout.MAGIC]
            connection.send(b"x")

    def join(self) -> None:
        self.thread.join()

    def word(self, of: mmap.mmap, offset: int) -> np.ndarray:
        return np.frombuffer(of, np.uint32, 1, offset)

    def put(self, channel: int, **loan: int) -> None:
        """Puts a loan into a ring."""
        slot = self.next[channel] % SLOTS
        start = layout.out_channel(SLOTS, channel) + layout.LINE
        slots = np.frombuffer(self.out, layout.LOAN, SLOTS, start)
        for name in layout.LOAN.names or ():
            slots[name][slot] = loan.get(name, 0)
        self.next[channel] = (self.next[channel] + 1) % (1 << 32)

    def publish(self, channel: int) -> bool:
        """Publishes, and wakes a sleeper; whether there was one."""
        self.word(self.out, layout.out_channel(SLOTS, channel))[0] = self.next[channel]
        lock = threading.Lock()
        lock.acquire()
        asleep = self.asleep()
        if asleep % 2 == 0 or asleep == self.woken:
            return False
        self.woken = asleep
        assert self.connection
        self.connection.send(b"x")
        return True

    def asleep(self) -> int:
        return int(self.word(self.back, layout.ASLEEP)[0])

    def lend(self, channel: int, first: int, packets: Sequence[int]) -> None:
        """Lends packets of so many parts; a loan's number is its token and its first bytes."""
        token = first
        for parts in packets:
            for part in range(1, parts + 1):
                addr = token % FRAMES * FRAME + 64
                self.area[addr : addr + 4] = np.uint32(token).tobytes()
                flags = layout.LOAN_MORE if part < parts else layout.LOAN_SHARED
                self.put(channel, addr=addr, len=100 + token, token=token, flags=flags, time=7)
                token += 1
        self.publish(channel)

    def returned(self, channel: int) -> List[int]:
        """The tokens that came back since the last time."""
        base = layout.back_channel(SLOTS, channel)
        producer = int(self.word(self.back, base)[0])
        tokens = np.frombuffer(self.back, np.uint32, SLOTS, base + layout.LINE)
        start, self.taken[channel] = self.taken[channel], producer
        count = (producer - start) % (1 << 32)
        return [int(tokens[(start + at) % SLOTS]) for at in range(count)]

    def say_closed(self, channel: int) -> None:
        self.word(self.out, layout.out_channel(SLOTS, channel) + 4)[0] = 1

    def say_why(self, ending: int) -> None:
        self.word(self.out, 16)[0] = ending

    def end(self) -> None:
        self.thread.join()
        if self.connection:
            self.connection.close()
        self.listener.close()
        for fd in self.fds:
            os.close(fd)
        self.folder.cleanup()

"""The borrower: receives loans, gives them back, waits for more."""

import enum
import os
import select
import time
from types import TracebackType
from typing import Any, List, Optional, Type, Union

import numpy as np
import numpy.typing as npt

from . import _connect, _fence
from . import _layout as layout
from ._connect import Gone, LendError, ProtocolError, Refused

__all__ = ["Borrower", "Gone", "LendError", "ProtocolError", "Refused", "Wait"]

Loans = npt.NDArray[np.void]
"""An array of :data:`RECEIVED`."""

Bytes = npt.NDArray[np.uint8]

_WORD = 1 << 32
_SLEEP_MOST = 0.1
"""A sleep is cut into pieces of so many seconds: a wake-up that is missed is late and not lost."""


class Wait(enum.Enum):
    """What a wait came to."""

    READY = "ready"
    """There is something to receive."""
    TIMED_OUT = "timed out"
    """Nothing came in that time."""
    CLOSED = "closed"
    """The lender has ended, and everything that it lent was received."""


class Borrower:
    """A connection to a lender. Used by one thread at a time.

    It trusts its lender, as a reader trusts whoever writes: loans are checked to lie in a frame,
    but that bytes stay as they are while they are on loan is the lender's word.

    :param path: the lender's socket
    :param name: what it is called in the lender's tables, up to 48 bytes; else the process's name
    :param quota: the most loans that it wants at a time in each channel; 0 leaves it to the lender
    :param mirror: every packet, beside those who share them out among themselves
    :param group: the group whose borrowers share the packets, from 0 to 65535; each group gets all
    :param timeout: how long to wait for the lender's answer, in seconds
    :param patience: for how many seconds to go on trying where there is no lender, or it has no room;
        none is no limit. To go on after a lender's end, make another borrower with patience.
    :raises Refused: the lender refused, and says why
    :raises ProtocolError: what listens there is no lender
    :raises TimeoutError: it did not answer in time
    :raises OSError: as connecting to a socket does: FileNotFoundError, ConnectionRefusedError,
        PermissionError
    """

    def __init__(
        self,
        path: Union[str, "os.PathLike[str]"],
        *,
        name: str = "",
        quota: int = 0,
        mirror: bool = False,
        group: int = 0,
        timeout: float = 2.0,
        patience: Optional[float] = 0.0,
    ) -> None:
        self._acquired, self._before_release, self._fence = _fence.fences()
        wish = _connect.Wish(name, quota, mirror, group)
        connection = _connect.connect(os.fspath(path), wish, timeout, patience)
        welcome = connection.welcome
        self._socket = connection.socket
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN | select.POLLRDHUP)
        self._gone = False
        self._awake = 0
        self._first = 0
        self._frame_size, self._frames = int(welcome["frame_size"]), int(welcome["frames"])
        self._quota = int(welcome["quota"])
        self._group = int(welcome["flags"]) >> layout.GROUP_SHIFT
        self._mirror = bool(welcome["flags"] & layout.HELLO_MIRROR)
        # Read-only, as the mapping is.
        self._bytes = np.frombuffer(connection.area, np.uint8, self._frames * self._frame_size)
        slots, channels = int(welcome["slots"]), int(welcome["channels"])
        self._asleep = np.frombuffer(connection.back, np.uint32, 1, layout.ASLEEP)
        self._channels = [
            _Channel(connection.out, connection.back, slots, number) for number in range(channels)
        ]

    def receive(self, max: int = 256) -> Loans:
        """Receives whole packets: an array of loans, of the type :data:`RECEIVED`.

        At most ``max`` loans, unless the first packet alone has more parts than that. Takes from
        the channels in turn. The array is empty if there is nothing; this does not wait.

        :raises ProtocolError: what the lender has written makes no sense. The connection is of no
            use then.
        """
        channels = len(self._channels)
        first, self._first = self._first, (self._first + 1) % channels
        batches: List[Loans] = []
        taken = 0
        # A share for each; then whatever is there, for those that have more.
        for share in (-(-max // channels), max)[: min(channels, 2)]:
            for at in range(first, first + channels):
                if taken >= max:
                    break
                channel = self._channels[at % channels]
                ready = channel.ready()
                if ready == 0:
                    continue
                self._acquired()
                loans = channel.whole(ready, share, max - taken, taken == 0)
                self._check(loans)
                channel.advance(len(loans))
                taken += len(loans)
                batches.append(loans)
        if len(batches) == 1:
            return batches[0]
        return np.concatenate(batches) if batches else np.empty(0, layout.RECEIVED)

    def frame(self, loan: np.void) -> Bytes:
        """The bytes of one loan: a read-only array of uint8 over the lender's memory, no copy.

        They stay as they are until the loan is given back.
        """
        start = loan["addr"]
        return self._bytes[start : start + loan["len"]]

    @property
    def area(self) -> Bytes:
        """All of the lender's memory: a read-only array of uint8, of (frames, frame size).

        The loan at ``addr`` begins in frame ``addr // frame_size`` at ``addr % frame_size``.
        """
        return self._bytes.reshape(self._frames, self._frame_size)

    def give_back(self, loans: Loans) -> None:
        """Gives loans back, in any order, each once. The lender sees them all at once.

        :param loans: what :meth:`receive` gave, or any part of it
        :raises ValueError: more loans than are out
        """
        loans = np.atleast_1d(loans)
        if len(self._channels) == 1:
            shares = [(self._channels[0], loans["token"])]
        else:
            channel = loans["channel"]
            shares = [(self._channels[at], loans["token"][channel == at]) for at in np.unique(channel)]
        for to, tokens in shares:
            to.put(tokens)
        self._before_release()
        for to, _ in shares:
            to.publish()

    def wait(self, timeout: Optional[float] = None) -> Wait:
        """Sleeps until there is something to receive, or the lender is gone, or the time is over.

        :param timeout: in seconds; none is no limit. 0 only looks, and costs the lender nothing:
            so a borrower that never sleeps learns that the lender is gone.
        :raises Gone: once everything was received: the lender was killed, or has disconnected this
            borrower
        :raises ProtocolError: what the lender has written makes no sense
        """
        there = self._look()
        if there is not Wait.TIMED_OUT:
            return there
        if timeout is not None and timeout <= 0:
            self._sleep(0)
            return self._look()
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._asleep[0] = (self._awake + 1) % _WORD
            # The lender fences between its store of an index and its look at this word: one of us
            # sees the other, or we would sleep on a loan.
            self._fence()
            there = self._look()
            try:
                if there is Wait.TIMED_OUT:
                    left = _SLEEP_MOST if until is None else until - time.monotonic()
                    self._sleep(min(max(left, 0), _SLEEP_MOST))
            finally:
                self._awake = (self._awake + 2) % _WORD
                self._asleep[0] = self._awake
            if there is Wait.TIMED_OUT:
                there = self._look()
            if there is not Wait.TIMED_OUT or (until is not None and time.monotonic() >= until):
                return there

    @property
    def dropped(self) -> int:
        """Packets that the lender dropped because this borrower had its quota."""
        return sum(int(channel.out["dropped"]) for channel in self._channels)

    @property
    def out(self) -> int:
        """Loans that were received and not given back."""
        return sum(channel.on_loan for channel in self._channels)

    @property
    def quota(self) -> int:
        """The most loans at a time in each channel."""
        return self._quota

    @property
    def channels(self) -> int:
        """How many channels there are: as many as the lender has threads that receive."""
        return len(self._channels)

    @property
    def frame_size(self) -> int:
        """Bytes of a frame: the most that a loan can have."""
        return self._frame_size

    @property
    def frames(self) -> int:
        """How many frames the lender has."""
        return self._frames

    @property
    def is_mirror(self) -> bool:
        """Whether it gets every packet."""
        return self._mirror

    @property
    def group(self) -> int:
        """The group whose borrowers share the packets; of a mirror 0."""
        return self._group

    def close(self) -> None:
        """Ends the connection. The lender takes back what is on loan.

        Arrays that were taken of frames stay readable; what they show may change.
        """
        self._gone = True
        self._socket.close()
        self._channels = []
        # Views of the mappings: while they are there, the lender counts us.
        self._asleep = np.zeros(1, np.uint32)
        self._bytes = np.zeros(0, np.uint8)

    def __enter__(self) -> "Borrower":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _check(self, loans: Loans) -> None:
        """Whether each loan lies in one frame."""
        size = self._frame_size
        addr, length = loans["addr"], loans["len"]
        fits = (addr >= 0) & (addr < len(self._bytes)) & (length > 0)
        fits &= addr % size + length <= size
        if not fits.all():
            bad = loans[~fits][0]
            raise ProtocolError(
                f"the lender lent {bad['len']} bytes at {int(bad['addr']) % (1 << 64)}, which is not "
                f"in one of {self._frames} frames of {self._frame_size} bytes"
            )

    def _look(self) -> Wait:
        # Before the rings: what was published before the end is seen after it.
        closed = [bool(channel.out["closed"]) for channel in self._channels]
        self._acquired()
        if any(channel.ready() for channel in self._channels):
            return Wait.READY
        if not self._gone and not all(closed):
            return Wait.TIMED_OUT
        why = int(self._channels[0].out["ended"]) if self._channels else layout.Ending.LENDER
        if why in (layout.Ending.OFFENCE, layout.Ending.EVICTED):
            raise Gone(layout.Ending(why))
        # A lender of version 2 has no word for it.
        if why == layout.Ending.UNSAID and not any(closed):
            raise Gone(layout.Ending.UNSAID)
        return Wait.CLOSED

    def _sleep(self, timeout: float) -> None:
        for _, events in self._poll.poll(timeout * 1000):
            if events & ~select.POLLIN:
                self._gone = True
            else:
                # Takes the wake-up: the lender keeps a few that are not taken, and sends no more.
                self._socket.recv(16)


class _Channel:
    """A channel's rings, as far as this side has come."""

    def __init__(self, out: Any, back: Any, slots: int, number: int) -> None:
        base = layout.out_channel(slots, number)
        self.out = np.frombuffer(out, layout.OUT, 1, base)[0]
        # A scalar view of one word is read with one load.
        self._produced = np.frombuffer(out, np.uint32, 1, base)
        # As rows of bytes: these are copied fastest.
        size = layout.LOAN.itemsize
        rows = np.frombuffer(out, np.uint8, slots * size, base + layout.LINE)
        self._loans = rows.reshape(slots, size)
        base = layout.back_channel(slots, number)
        self._producer = np.frombuffer(back, np.uint32, 1, base)
        self._tokens = np.frombuffer(back, np.uint32, slots, base + layout.LINE)
        self._number, self._slots = number, slots
        self._next_loan = self._next_token = 0
        self.on_loan = 0

    def ready(self) -> int:
        """How many loans there are to read."""
        produced = int(self._produced[0])
        ready = (produced - self._next_loan) % _WORD
        if ready > self._slots:
            raise ProtocolError(
                f"the lender's ring index went from {self._next_loan} to {produced}, more than "
                "its slots"
            )
        return ready

    def whole(self, ready: int, share: int, room: int, first_whole: bool) -> Loans:
        """Loans up to the end of a packet: the first after ``share``, if there is room.

        For the first packet there is, whatever its size, if it may be ``first_whole``.
        """
        # Beyond the share there is at most the rest of a packet, mostly none.
        count = min(ready, share + 32)
        while True:
            loans = self._peek(count)
            ends = np.flatnonzero(loans["flags"] & layout.LOAN_MORE == 0) + 1
            if count == ready or (len(ends) and ends[-1] >= share):
                break
            count = ready
        at = int(np.searchsorted(ends, share))
        fitting = int(np.searchsorted(ends, room, side="right"))
        at = min(at, fitting - 1, len(ends) - 1)
        if at < 0:
            return loans[: int(ends[0]) if first_whole and len(ends) else 0]
        return loans[: int(ends[at])]

    def _peek(self, count: int) -> Loans:
        loans = np.zeros(count, layout.RECEIVED)
        loans["channel"] = self._number
        rows = loans.view(np.uint8).reshape(count, layout.RECEIVED.itemsize)
        start = self._next_loan % self._slots
        before = min(count, self._slots - start)
        size = layout.LOAN.itemsize
        rows[:before, :size] = self._loans[start : start + before]
        rows[before:, :size] = self._loans[: count - before]
        return loans

    def advance(self, loans: int) -> None:
        """Goes past loans that were read."""
        self._next_loan = (self._next_loan + loans) % _WORD
        self.on_loan += loans

    def put(self, tokens: npt.NDArray[np.uint32]) -> None:
        """Puts tokens into the ring; seen after :meth:`publish`."""
        count = len(tokens)
        if count > self.on_loan:
            raise ValueError(f"{count} loans are given back where {self.on_loan} are out")
        start = self._next_token % self._slots
        before = min(count, self._slots - start)
        self._tokens[start : start + before] = tokens[:before]
        self._tokens[: count - before] = tokens[before:]
        self._next_token = (self._next_token + count) % _WORD
        self.on_loan -= count

    def publish(self) -> None:
        """Shows the lender what was put in."""
        self._producer[0] = self._next_token

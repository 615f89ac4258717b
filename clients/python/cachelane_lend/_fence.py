"""Memory ordering, as far as Python can have it.

Between two steps of Python code the processor may reorder, and a compiler cannot. On x86-64 the
processor reorders one thing alone, a store with a later load. So of the three fences here only
``full`` does something there: it takes a lock and gives it back, which is an instruction with a
``lock`` prefix. Elsewhere all of them are ``membarrier(2)``, whose command GLOBAL_EXPEDITED is a
full barrier for whoever calls it.
"""

import ctypes
import os
import platform
import threading
from typing import Callable, Tuple

Fence = Callable[[], None]


def fences(machine: str = platform.machine()) -> Tuple[Fence, Fence, Fence]:
    """The fences of this machine: after an acquiring load, before a releasing store, and full.

    Raises OSError where there are none.
    """
    if machine in ("x86_64", "AMD64"):
        return _nothing, _nothing, _locked(threading.Lock())
    barrier = _membarrier()
    return barrier, barrier, barrier


def _nothing() -> None:
    pass


def _locked(lock: threading.Lock) -> Fence:
    def fence() -> None:
        lock.acquire()
        lock.release()

    return fence


_NUMBERS = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}
_GLOBAL_EXPEDITED = 1 << 1


def _membarrier() -> Fence:
    machine = os.uname().machine
    number = _NUMBERS.get(machine)
    if number is None:
        raise OSError(f"no memory barrier is known for {machine}")
    syscall = ctypes.CDLL(None, use_errno=True).syscall

    def fence() -> None:
        if syscall(ctypes.c_long(number), ctypes.c_int(_GLOBAL_EXPEDITED), 0, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"membarrier: {os.strerror(error)}")

    fence()
    return fence

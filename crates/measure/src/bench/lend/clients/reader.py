"""Borrows, and reads every byte of every packet: a batch in one numpy expression where packets have
the same length."""

import sys

import numpy as np
from cachelane_lend import Borrower, Wait


def read(memory: np.ndarray, loans: np.ndarray) -> int:
    starts, lengths = loans["addr"].astype(np.intp), loans["len"].astype(np.intp)
    if (lengths == lengths[0]).all():
        return int(memory[starts[:, None] + np.arange(lengths[0])].sum())
    ends = starts + lengths
    return sum(int(memory[start:end].sum()) for start, end in zip(starts, ends))


with Borrower(sys.argv[1]) as lender:
    memory = lender.area.reshape(-1)
    total = 0
    while lender.wait() is Wait.READY:
        loans = lender.receive()
        if len(loans):
            total += read(memory, loans)
            lender.give_back(loans)
print(total)

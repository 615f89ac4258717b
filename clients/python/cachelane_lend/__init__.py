"""Received packets from a cachelane lender, as numpy arrays, without a copy.

A lender receives packets into memory that it shares read-only. A :class:`Borrower` connects to its
Unix socket, gets batches of packets as numpy structured arrays of loans, reads them where they
lie, and gives them back. docs/lend-protocol.md in cachelane's repository describes what the two
share.
"""

from ._borrower import Borrower, Gone, LendError, ProtocolError, Refused, Wait
from ._layout import LOAN, LOAN_MORE, LOAN_SHARED, LOAN_STAMPED, RECEIVED, Ending, Status

__all__ = [
    "LOAN",
    "LOAN_MORE",
    "LOAN_SHARED",
    "LOAN_STAMPED",
    "RECEIVED",
    "Borrower",
    "Ending",
    "Gone",
    "LendError",
    "ProtocolError",
    "Refused",
    "Status",
    "Wait",
]

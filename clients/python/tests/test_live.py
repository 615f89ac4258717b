"""The borrower against the real lender, whose socket is $CACHELANE_LENDER.

`cargo test -p cachelane-lend --test clients` starts it, with a lender that lends packets of 60
bytes: UDP to port 53.
"""

import os
import unittest

from cachelane_lend import LOAN_MORE, Borrower, Wait


@unittest.skipUnless("CACHELANE_LENDER" in os.environ, "needs $CACHELANE_LENDER")
class Live(unittest.TestCase):
    def test_everything_that_is_lent_is_received_and_given_back(self) -> None:
        packets = total = 0
        with Borrower(os.environ["CACHELANE_LENDER"], name="python") as borrower:
            while borrower.wait() is Wait.READY:
                loans = borrower.receive(40)
                self.assertTrue(0 < len(loans) <= 40 and not loans["flags"][-1] & LOAN_MORE)
                packets += int((loans["flags"] & LOAN_MORE == 0).sum())
                total += int(loans["len"].sum())
                for loan in loans:
                    frame = borrower.frame(loan)
                    self.assertEqual(bytes(frame[36:38]), b"\x00\x35")
                with self.assertRaises(ValueError):
                    frame[0] = 1
                borrower.give_back(loans)
            print(f"{packets} packets, {total} bytes, {borrower.dropped} dropped")

"""The layout against the lender's own, of which $CACHELANE_LAYOUT names a list."""

import os
import unittest
from typing import Dict

from cachelane_lend import LOAN_MORE, LOAN_SHARED, LOAN_STAMPED, Ending, Status
from cachelane_lend import _layout as layout


def ours() -> Dict[str, int]:
    """Sizes, offsets and constants under the names that the lender gives them."""
    found = {
        "MAGIC": layout.MAGIC,
        "VERSION_MIN": layout.VERSIONS[0],
        "VERSION_MAX": layout.VERSIONS[1],
        "VERSION_GROUPS": layout.VERSION_GROUPS,
        "LINE": layout.LINE,
        "SLOTS_MIN": layout.SLOTS_MIN,
        "HELLO_MIRROR": layout.HELLO_MIRROR,
        "GROUP_SHIFT": layout.GROUP_SHIFT,
        "LOAN_MORE": LOAN_MORE,
        "LOAN_SHARED": LOAN_SHARED,
        "LOAN_STAMPED": LOAN_STAMPED,
        "ASLEEP": layout.ASLEEP,
        "out_channel": layout.out_channel(64, 3),
        "back_channel": layout.back_channel(64, 3),
    }
    found.update({status.name: int(status) for status in (*Status, *Ending)})
    for name in ("hello", "welcome", "mapped", "loan", "out", "back"):
        dtype = getattr(layout, name.upper())
        found[name] = dtype.itemsize
        for field, (kind, offset, *_) in (dtype.fields or {}).items():
            found[f"{name}.{field}"] = offset
            found[f"{name}.{field}.size"] = kind.itemsize
    return found


class Layout(unittest.TestCase):
    def test_sizes(self) -> None:
        sizes = [layout.HELLO.itemsize, layout.WELCOME.itemsize, layout.LOAN.itemsize]
        self.assertEqual(sizes, [64, 160, 32])
        self.assertEqual(layout.RECEIVED.itemsize, 40)

    @unittest.skipUnless("CACHELANE_LAYOUT" in os.environ, "needs $CACHELANE_LAYOUT")
    def test_the_lender_has_the_same(self) -> None:
        with open(os.environ["CACHELANE_LAYOUT"], encoding="ascii") as file:
            theirs = {name: int(value) for name, value in (line.split() for line in file)}
        self.assertEqual(ours(), theirs)

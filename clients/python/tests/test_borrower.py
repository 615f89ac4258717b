"""The borrower against a lender made by hand."""

import os
import socket
import tempfile
import threading
import time
import unittest
from typing import Callable, Tuple

import numpy as np

from cachelane_lend import LOAN_MORE, Borrower, Ending, Gone, ProtocolError, Refused, Status, Wait, _fence
from cachelane_lend import _layout as layout

from .lender import CHANNELS, FRAME, FRAMES, QUOTA, SLOTS, Lender, memory


class Connected(unittest.TestCase):
    def setUp(self) -> None:
        self.lender = Lender()
        self.addCleanup(self.lender.end)
        self.borrower = Borrower(self.lender.path, name="test", quota=9, mirror=True)
        self.addCleanup(self.borrower.close)
        self.lender.join()

    def test_hello_and_welcome_are_read_as_they_are_meant(self) -> None:
        hello, borrower = self.lender.hello, self.borrower
        self.assertEqual((hello["magic"], hello["name"]), (layout.MAGIC, b"test"))
        self.assertEqual((hello["version_min"], hello["version_max"]), layout.VERSIONS)
        self.assertEqual((hello["quota"], hello["flags"]), (9, layout.HELLO_MIRROR))
        self.assertEqual((borrower.frames, borrower.frame_size), (FRAMES, FRAME))
        self.assertEqual((borrower.quota, borrower.channels), (QUOTA, CHANNELS))
        self.assertTrue(borrower.is_mirror)

    def test_loans_arrive_as_they_are_and_tokens_go_back_in_their_channel(self) -> None:
        for at in range(20):
            first = at * 7
            self.lender.lend(0, first, [1, 2])
            self.lender.lend(1, first + 3, [1, 3])
            loans = self.borrower.receive()
            self.assertEqual(sorted(loans["token"]), list(range(first, first + 7)))
            self.assertEqual(self.borrower.out, 7)
            for loan in loans:
                frame = self.borrower.frame(loan)
                self.assertEqual(len(frame), 100 + loan["token"])
                self.assertEqual(frame[:4].view(np.uint32)[0], loan["token"])
                self.assertEqual(loan["time"], 7)
                row = self.borrower.area[loan["addr"] // FRAME]
                self.assertTrue(np.shares_memory(row, frame))
            self.borrower.give_back(loans[::-1])
            self.assertEqual(self.borrower.out, 0)
            self.assertEqual(self.lender.returned(0)[::-1], list(range(first, first + 3)))
            self.assertEqual(self.lender.returned(1)[::-1], list(range(first + 3, first + 7)))

    def test_indices_wrap(self) -> None:
        start = (1 << 32) - 40
        for at, channel in enumerate(self.borrower._channels):
            channel._next_loan = channel._next_token = start
            self.lender.next[at] = self.lender.taken[at] = start
            self.lender.publish(at)
        for at in range(30):
            self.lender.lend(0, at, [1, 2])
            loans = self.borrower.receive()
            self.assertEqual(list(loans["token"]), [at, at + 1, at + 2])
            self.borrower.give_back(loans)
            self.assertEqual(self.lender.returned(0), [at, at + 1, at + 2])

    def test_one_loan_can_be_given_back_and_more_than_are_out_cannot(self) -> None:
        self.lender.lend(0, 5, [1, 1])
        loans = self.borrower.receive()
        self.borrower.give_back(loans[1])
        self.assertEqual(self.lender.returned(0), [6])
        with self.assertRaisesRegex(ValueError, "2 loans are given back where 1 are out"):
            self.borrower.give_back(loans)
        self.assertEqual(self.lender.returned(0), [])

    def test_a_frame_is_no_copy_and_cannot_be_written(self) -> None:
        self.lender.lend(0, 5, [1])
        frame = self.borrower.frame(self.borrower.receive()[0])
        self.lender.area[5 * FRAME + 64 + 9] = 77
        self.assertEqual(frame[9], 77)
        with self.assertRaisesRegex(ValueError, "read-only"):
            frame[0] = 1
        with self.assertRaises(ValueError):
            frame.flags.writeable = True
        with self.assertRaisesRegex(ValueError, "read-only"):
            self.borrower.area[0, 0] = 1
        # It stays readable, whoever ends first.
        self.borrower.close()
        self.assertEqual(frame[9], 77)

    def test_packets_are_never_cut_and_no_channel_waits_for_another(self) -> None:
        self.lender.put(0, len=1, token=0, flags=LOAN_MORE)
        self.lender.publish(0)
        self.assertEqual(len(self.borrower.receive()), 0, "not there as a whole")
        self.lender.put(0, len=1, token=1)
        self.lender.publish(0)
        loans = self.borrower.receive(1)
        self.assertEqual(list(loans["token"]), [0, 1], "the first is whole though it is more")
        self.borrower.give_back(loans)
        self.lender.lend(0, 100, [5, 5])
        self.lender.lend(1, 200, [1] * 20)
        turns = []
        for _ in range(4):
            loans = self.borrower.receive(6)
            self.assertTrue(0 < len(loans) <= 6 and not loans["flags"][-1] & LOAN_MORE)
            turns += list(loans["token"])
            self.borrower.give_back(loans)
        self.assertEqual([token for token in turns if token < 200], list(range(100, 110)))
        ones = [token for token in turns if token >= 200]
        self.assertEqual(ones, list(range(200, 200 + len(ones))))

    def test_what_the_lender_dropped_is_counted(self) -> None:
        for channel in range(CHANNELS):
            base = layout.out_channel(SLOTS, channel)
            np.frombuffer(self.lender.out, layout.OUT, 1, base)["dropped"][0] = 3
        self.assertEqual(self.borrower.dropped, 6)

    def test_loans_outside_the_area_or_of_two_frames_are_refused(self) -> None:
        end = FRAMES * FRAME
        for addr, length in [
            (end, 1),
            (end - 1, 2),
            (0, 0),
            (0, FRAME + 1),
            (2000, 49),
            ((1 << 64) - 1, 1),
            (1 << 63, FRAME),
        ]:
            with self.subTest(addr=addr, length=length):
                self.lender.next[0] = 0
                self.lender.put(0, addr=addr, len=length)
                self.lender.publish(0)
                for _ in range(2):
                    with self.assertRaisesRegex(ProtocolError, f"{length} bytes at {addr}"):
                        self.borrower.receive()
                self.assertEqual(self.borrower.out, 0)

    def test_an_index_out_of_step_is_an_error(self) -> None:
        self.lender.next[1] = SLOTS + 1
        self.lender.publish(1)
        for act in (self.borrower.receive, self.borrower.wait):
            with self.assertRaisesRegex(ProtocolError, "from 0 to 33"):
                act()

    def test_who_sleeps_is_woken_and_who_is_awake_costs_the_lender_nothing(self) -> None:
        self.assertIs(self.borrower.wait(0), Wait.TIMED_OUT)
        self.assertIs(self.borrower.wait(0.001), Wait.TIMED_OUT)
        self.lender.lend(1, 0, [1])
        self.assertFalse(self.lender.publish(1), "nobody sleeps")
        for at in range(20):
            self.assertIs(self.borrower.wait(), Wait.READY)
            self.borrower.give_back(self.borrower.receive())
            there = []
            sleeper = threading.Thread(target=lambda: there.append(self.borrower.wait(60)))
            sleeper.start()
            while self.lender.asleep() % 2 == 0:
                time.sleep(0)  # Lets the sleeper go on.
            self.lender.lend(at % 2, 0, [1])
            sleeper.join()
            self.assertEqual(there, [Wait.READY])

    def test_the_end_comes_after_everything_was_received(self) -> None:
        self.lender.lend(0, 0, [1])
        self.lender.say_closed(0)
        self.assertIs(self.borrower.wait(), Wait.READY)
        self.assertEqual(len(self.borrower.receive()), 1)
        self.assertIs(self.borrower.wait(0.001), Wait.TIMED_OUT)
        self.lender.say_closed(1)
        self.assertIs(self.borrower.wait(), Wait.CLOSED)

    def test_a_lender_that_dies_is_the_end_too(self) -> None:
        self.lender.lend(0, 0, [1])
        assert self.lender.connection
        self.lender.connection.close()
        self.assertIs(self.borrower.wait(), Wait.READY)
        self.borrower.receive()
        for timeout in (0, None):
            with self.assertRaisesRegex(Gone, "killed, or it crashed") as gone:
                self.borrower.wait(timeout)
            self.assertIs(gone.exception.why, Ending.UNSAID)

    def test_one_that_is_disconnected_learns_why(self) -> None:
        for why in (Ending.OFFENCE, Ending.EVICTED):
            self.lender.say_why(why)
            self.lender.say_closed(0)
            self.lender.say_closed(1)
            with self.assertRaises(Gone) as gone:
                self.borrower.wait()
            self.assertIs(gone.exception.why, why)
        self.lender.say_why(Ending.LENDER)
        self.assertIs(self.borrower.wait(), Wait.CLOSED)


class Refusals(unittest.TestCase):
    def connect(self, change: Callable[[Lender], None]) -> Exception:
        lender = Lender(change)
        try:
            with self.assertRaises(Exception) as caught:
                Borrower(lender.path)
            self.assertIn(lender.path, str(caught.exception))
            return caught.exception
        finally:
            lender.end()

    def test_a_refusal_gives_the_lenders_reason(self) -> None:
        def refuse(lender: Lender) -> None:
            lender.welcome["status"] = Status.QUOTA
            lender.welcome["reason"] = b"too\x1b many"

        error = self.connect(refuse)
        assert isinstance(error, Refused)
        self.assertEqual(error.status, Status.QUOTA)
        self.assertTrue(str(error).endswith("the lender refuses: too? many"))

    def test_what_is_no_welcome_is_not_believed(self) -> None:
        cases: Tuple[Tuple[str, int, str], ...] = (
            ("magic", 1, "does not start as a lender's"),
            ("version", 0, "version 0"),
            ("version", 1, "version 1"),
            ("frame_size", 1000, "frames of 1000 bytes"),
            ("frames", 0, "0 frames"),
            ("slots", 48, "48 slots"),
            ("slots", 1 << 31, "2147483648 slots"),
            ("channels", 0, "0 channels"),
            ("channels", 1 << 31, "2147483648 channels"),
            ("quota", 33, "33 loans"),
            ("out_len", 1, "1 bytes of memory where"),
            ("area_len", FRAMES * FRAME + 1, "'area' with fewer than 32769 bytes"),
        )
        for field, value, part in cases:
            with self.subTest(field=field, value=value):
                error = self.connect(lambda lender: lender.welcome.__setitem__(field, value))
                self.assertIsInstance(error, ProtocolError)
                self.assertIn(part, str(error))

    def test_descriptors_that_are_missing_or_not_sealed_are_not_used(self) -> None:
        def without(lender: Lender) -> None:
            os.close(lender.fds.pop())

        self.assertIn("it sent 2 descriptors", str(self.connect(without)))
        for at in range(3):

            def loose(lender: Lender, at: int = at) -> None:
                os.close(lender.fds[at])
                lender.fds[at] = memory(1 << 20, seal=False)

            error = self.connect(loose)
            self.assertIsInstance(error, ProtocolError)
            self.assertIn("not sealed", str(error))

    def test_what_cannot_be_connected_to_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "nothing")
            with self.assertRaises(FileNotFoundError) as missing:
                Borrower(path)
            self.assertIn(path, str(missing.exception))
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                path = os.path.join(folder, "silent")
                listener.bind(path)
                with self.assertRaises(ConnectionRefusedError):
                    Borrower(path)
                listener.listen(1)
                with self.assertRaisesRegex(TimeoutError, "did not answer within 0.02 s"):
                    Borrower(path, timeout=0.02)
        for name in ("x" * 49, "a\0b"):
            with self.assertRaisesRegex(ValueError, "at most 48 bytes"):
                Borrower("/nowhere", name=name)

    def test_descriptors_are_not_leaked(self) -> None:
        def open_files() -> int:
            return len(os.listdir("/proc/self/fd"))

        self.connect(lambda lender: lender.welcome.__setitem__("frames", 0))
        before = open_files()
        for field in ("magic", "frames", "area_len"):
            self.connect(lambda lender: lender.welcome.__setitem__(field, 1 << 30))
        # The hand-made lenders' own are closed when they are collected.
        self.assertLessEqual(open_files(), before + 20)


class Fences(unittest.TestCase):
    def test_every_machine_has_fences_that_can_be_called(self) -> None:
        for machine in ("x86_64", "aarch64"):
            for fence in _fence.fences(machine):
                fence()

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The key queue with real threads."""

from __future__ import annotations

import contextlib
import math
import threading
import time

from rover_kf.api.jobs import JobKey
from rover_kf.reconcilers.queue import KeyQueue
from tests.support.waiting import eventually

ONE, TWO = JobKey("team", "one"), JobKey("team", "two")


class Noting(KeyQueue):
    """Knows in which order workers have taken keys: when each of them then begins is chance."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def _pop(self, stop):
        with self._changed:
            key = super()._pop(stop)
            self.taken += [] if key is None else [key]
            return key


@contextlib.contextmanager
def workers(queue, reconcile, count=1):
    stop = threading.Event()
    threads = [threading.Thread(target=queue.run, args=(reconcile, stop)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


def test_one_key_is_never_looked_at_twice_at_a_time():
    """Added again and again while it runs, with three workers: one look at a time, none lost."""
    queue, inside, seen, worst = KeyQueue(), threading.Lock(), [], []

    def reconcile(key):
        worst.append(inside.acquire(blocking=False))
        queue.add(key) if len(seen) < 20 else None
        seen.append(key)
        inside.release()

    queue.add(ONE)
    with workers(queue, reconcile, 3):
        eventually(lambda: len(seen) >= 21, what="looks")
    assert all(worst)


def test_other_keys_go_on_while_one_is_stuck():
    """A key that takes long does not hold up another one."""
    queue, release, seen = KeyQueue(), threading.Event(), []

    def reconcile(key):
        if key == ONE:
            release.wait(20)
        seen.append(key)

    queue.add(ONE)
    queue.add(TWO)
    with workers(queue, reconcile, 2):
        eventually(lambda: seen == [TWO], what="the second key")
        release.set()


def test_same_key_in_line_is_looked_at_once():
    """Ten requests before the worker starts are one look."""
    queue, seen = KeyQueue(), []
    for _ in range(10):
        queue.add(ONE)
    with workers(queue, seen.append):
        eventually(lambda: seen, what="a look")
        eventually(lambda: len(queue) == 0, what="an empty queue")
    assert seen == [ONE]


def test_delay_is_kept_and_an_earlier_request_wins():
    """A key asked for in an hour is not looked at now, unless somebody asks for now."""
    queue, seen = KeyQueue(), []
    queue.add(ONE, delay=3600)
    queue.add(TWO)
    with workers(queue, seen.append):
        eventually(lambda: TWO in seen, what="the key that is due")
        assert ONE not in seen
        queue.add(ONE)
        eventually(lambda: ONE in seen, what="the key that was moved up")


def test_somebody_wakes_for_what_is_due_sooner():
    """Of several workers one waits for the next key, and what comes in between is not missed."""
    queue = Noting()
    queue.add(ONE, delay=3600)
    with workers(queue, lambda _: None, 3):
        eventually(lambda: queue._awaited < math.inf, what="a worker that waits")
        for number in range(20):
            queue.add(JobKey("team", str(number)), delay=number / 100)
        eventually(lambda: len(queue.taken) == 20, what="all that is due")
        assert [int(key.name) for key in queue.taken] == list(range(20))


def test_failures_back_off_and_are_logged(caplog):
    """A failing reconciler is tried again, each time later, with its traceback in the log."""
    ticks = [0.0]
    queue, calls = KeyQueue(clock=lambda: ticks[0]), []

    def reconcile(_):
        calls.append(ticks[0])
        if len(calls) < 4:
            raise ValueError("broken manifest")

    queue.add(ONE)
    with workers(queue, reconcile):
        for tries, wait in enumerate((1.0, 2.0, 4.0), start=1):
            eventually(lambda n=tries: len(calls) == n, what="a try")
            eventually(lambda: ONE in queue._due, what="the next try")
            assert queue._due[ONE] == ticks[0] + wait
            ticks[0] += wait
        eventually(lambda: len(calls) == 4, what="the good try")
    assert "broken manifest" in caplog.text


def test_stops_promptly():
    """With nothing to do, setting stop ends a worker in well under a few seconds."""
    queue = KeyQueue()
    began = time.monotonic()
    with workers(queue, lambda _: None, 2):
        pass
    assert time.monotonic() - began < 10


def test_answer_is_the_next_delay():
    """A number asks for another look, None for none."""
    queue, answers, seen = KeyQueue(), iter([0.0, 0.0, None]), []

    def reconcile(key):
        seen.append(key)
        return next(answers)

    queue.add(ONE)
    with workers(queue, reconcile):
        eventually(lambda: len(seen) == 3, what="three looks")
        eventually(lambda: len(queue) == 0, what="an empty queue")
    assert len(seen) == 3


def test_a_key_that_is_in_line_is_not_missing():
    """A resync moves nobody up, adds who is in no line, and none that is being looked at."""
    ticks = [0.0]
    queue, seen, release = KeyQueue(clock=lambda: ticks[0]), [], threading.Event()

    def reconcile(key):
        seen.append(key)
        if key == TWO:
            release.wait(20)

    queue.add(ONE, delay=3600)
    queue.add_missing(ONE)
    queue.add_missing(TWO)
    with workers(queue, reconcile):
        eventually(lambda: seen == [TWO], what="the key that was missing")
        queue.add_missing(TWO)
        release.set()
        eventually(lambda: len(queue) == 1, what="no second look")
        ticks[0] = 3600.0
        eventually(lambda: seen == [TWO, ONE], what="the key at its time")


def test_thousands_of_keys_come_in_the_order_of_their_times():
    """Whatever the order in which they were asked for, and moved up."""
    ticks = [0.0]
    queue, seen = KeyQueue(clock=lambda: ticks[0]), []
    keys = [JobKey("team", f"job-{number}") for number in range(5000)]
    for number, key in enumerate(reversed(keys)):
        queue.add(key, delay=10_000 + number)
    for number, key in enumerate(keys):
        queue.add(key, delay=number)
    ticks[0] = 20_000.0
    with workers(queue, seen.append):
        eventually(lambda: len(queue) == 0, what="an empty queue")
    assert seen == keys

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Work that several threads share, and the cores that there are for it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading

import pytest
import torch

from rover_kf.system import cpu_quota
from rover_kf.trainer.staging.copy_threads import CopyThreads, SharedWork
from tests.support.waiting import eventually

pytestmark = pytest.mark.torch


def _note_end(taken: list[int], ends: list[object], error: BaseException | None) -> None:
    ends.append((error, len(taken)))


def test_every_piece_is_done_once_and_the_ending_after_all():
    """Whoever takes them."""
    for count in (0, 1, 3):
        hands, taken, ends = CopyThreads(count), [], []
        work = SharedWork(
            [functools.partial(taken.append, index) for index in range(500)],
            functools.partial(_note_end, taken, ends),
        )
        hands.submit(work)
        work.wait()
        hands.close()
        assert sorted(taken) == list(range(500))
        assert ends == [(None, 500)]
        assert work.is_done
        assert work.error is None


def test_a_failed_piece_ends_the_work():
    """The rest is given up, the ending is told, nobody waits for ever."""
    taken: list[int] = []
    told: list[BaseException | None] = []
    failure = OSError("no page")

    def fail() -> None:
        raise failure

    work = SharedWork([lambda: taken.append(1), fail, lambda: taken.append(2)], told.append)
    work.wait()
    assert (taken, told, work.error) == ([1], [failure], failure)


def test_a_failed_ending_is_the_work_s_failure():
    """Also when there are no pieces at all."""

    def end(_: BaseException | None) -> None:
        raise OSError("not sealed")

    for pieces in ([], [lambda: None]):
        work = SharedWork(pieces, end)
        work.wait()
        assert str(work.error) == "not sealed"


def test_ctrl_c_in_a_piece_is_told_to_who_waits_and_spoils_nothing():
    """The piece is done by whoever comes next: another thread that waits, or the next wait."""
    taken: list[int] = []
    told: list[BaseException | None] = []
    interrupts = [KeyboardInterrupt()]

    def interrupted() -> None:
        if interrupts:
            raise interrupts.pop()
        taken.append(1)

    work = SharedWork([interrupted, lambda: taken.append(2)], told.append)
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    assert (taken, told, work.is_done) == ([], [], False)
    work.wait()
    assert (taken, told, work.error, work.is_done) == ([1, 2], [None], None, True)


def test_a_piece_that_was_interrupted_is_taken_by_who_waits_already():
    """Who found no piece left must not wait for one that nobody is at any more."""
    begun, go, taken = threading.Event(), threading.Event(), []

    def interrupted() -> None:
        if not begun.is_set():
            begun.set()
            go.wait(60)
            raise SystemExit
        taken.append(threading.current_thread().name)

    def wait() -> None:
        with contextlib.suppress(SystemExit):
            work.wait()

    work = SharedWork([interrupted])
    first = threading.Thread(target=wait, name="first", daemon=True)
    second = threading.Thread(target=work.wait, name="second", daemon=True)
    first.start()
    assert begun.wait(60)
    second.start()
    eventually(lambda: work._changed._waiters, what="the second has found nothing to take")
    go.set()
    second.join(60)
    first.join(60)
    assert (taken, work.error, work.is_done) == (["second"], None, True)


def test_ctrl_c_in_the_ending_is_told_once():
    """To who waits, not to the save after."""

    def end(_: BaseException | None) -> None:
        raise KeyboardInterrupt

    work = SharedWork([lambda: None], end)
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    work.wait()
    assert (work.error, work.is_done) == (None, True)


def test_threads_leave_torch_s_count_alone():
    """One torch thread in each, and what the process had in it and in later threads."""
    before = torch.get_num_threads()
    seen: list[int] = []
    hands = CopyThreads(2, nice=1)
    barrier = threading.Barrier(2)

    def note() -> None:
        seen.append(torch.get_num_threads())
        barrier.wait(30)

    hands.submit(SharedWork([note, note]))
    eventually(lambda: len(seen) == 2, what="both threads have worked")
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    hands.close()
    assert seen == [1, 1, before]
    assert torch.get_num_threads() == before


def test_threads_that_give_way_never_come_forward():
    """Where training itself was started with nice, they keep its priority: nobody may raise it."""
    seen: list[int] = []

    def train() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 12)
        hands = CopyThreads(1, nice=5)
        priority = functools.partial(os.getpriority, os.PRIO_PROCESS)
        hands.submit(SharedWork([lambda: seen.append(priority(threading.get_native_id()))]))
        hands.close()

    training = threading.Thread(target=train)
    training.start()
    training.join()
    assert seen == [12]


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "0::/\n", 64.0),
        ({"cpu.max": "max 100000\n"}, "0::/\n", 64.0),
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"kubepods/cpu.max": "200000 100000\n", "kubepods/pod/a/cpu.max": "max 100000\n"},
         "0::/kubepods/pod/a\n", 2.0),
        ({"cpu,cpuacct/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
         "4:cpu,cpuacct:/\n", 64.0),
        ({"cpu,cpuacct/cpu.cfs_quota_us": "50000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"},
         "4:cpu,cpuacct:/outside/of/here\n9:memory:/x\n", 0.5),
    ],
)  # fmt: skip
def test_quotas_of_both_kinds_of_control_groups(tmp_path, monkeypatch, files, own, expected):
    """The smallest quota on the way up counts, in a container's view and in the host's."""
    monkeypatch.setattr(cpu_quota.os, "sched_getaffinity", lambda _: set(range(64)))
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    assert cpu_quota.available(tmp_path / "cgroup", tmp_path / "own") == expected

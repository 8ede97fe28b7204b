# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is told of a pod's memory, beside the kernel's own account of the trainer's container.

A real sidecar and launcher; the launcher, its zygote and the ranks that this forks have a control
group of their own, as a container has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from testcluster import settings

from rover_kf.system import procfs
from tests.support import memory_group
from tests.support.pods.launcher_pods import Job, show
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

MIB = 1 << 20
LIMIT_MEBIBYTES = 2048
HELD, SHARED, CACHED = 64, 48, 256
"""MiB that each rank holds, that the first has in shared memory, and of a file that it reads."""
KERNEL = 32 * MIB
"""More than the kernel's own pages for these processes."""
BESIDE = ("sh", "-c", 'sleep 300 & "$@"; code=$?; kill $!; exit $code', "sh")
"""Runs a command, and something else in the same container."""

HOLDING = """
import mmap, pathlib, sys, time
import torch, torch.distributed as dist
from rover_kf import Checkpointer
held, shared, file, end = int(sys.argv[1]), int(sys.argv[2]), *map(pathlib.Path, sys.argv[3:])
dist.init_process_group("gloo")
state = {"model": torch.nn.Linear(4, 4)}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
kept = torch.ones(held << 18)
if dist.get_rank() == 0:
    together = mmap.mmap(-1, shared << 20)
    together.write(b"1" * (shared << 20))
    with file.open("rb") as opened:
        while opened.read(1 << 20):
            pass
print(f"rank {dist.get_rank()} holds", flush=True)
ends = torch.zeros(1)
while not ends:
    step += 1
    ends[0] = end.exists()
    dist.all_reduce(ends)
    time.sleep(0.05)
    checkpointer.step(step, state)
checkpointer.close()
dist.destroy_process_group()
"""


@pytest.fixture
def container() -> Iterator[tuple[str, ...]]:
    """What gives a launcher and all that it starts a control group."""
    if os.geteuid() != 0:
        reason = "not root: no control group can be made"
        if settings.in_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    with memory_group.limited(LIMIT_MEBIBYTES) as command:
        yield command


def _told(job: Job) -> int:
    """Bytes of no file that the pod is said to take; the peak has the libraries, too."""
    return int(job.status().memory_peak) - _most("RssFile")


def _most(name: str) -> int:
    return max(procfs.status_sizes(pid).get(name, 0) for pid in memory_group.members())


@pytest.mark.parametrize("beside", [(), BESIDE], ids=["alone", "beside another program"])
def test_what_is_told_is_what_the_kernel_counts(container, beside):
    """Two ranks share most of their pages with the process they were forked from, each page is
    told once, and what the kernel keeps of a file that was read is not told. A container that is
    the launcher's alone has its own account, shared memory within it; else processes are summed."""
    with Job(1) as job:
        data, end = job.folder / "data", job.folder / "end"
        data.write_bytes(bytes(CACHED * MIB))
        with data.open("rb") as written:
            os.fsync(written.fileno())
            os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        words = ("--nproc-per-node=2", job.script(HOLDING), *map(str, (HELD, SHARED, data, end)))
        pod = job.add(0, *words, inside=(*container, *beside))
        eventually(lambda: pod.text().count("holds") == 2, within=120, what="both ranks")
        shared = 0 if beside else SHARED * MIB
        eventually(
            lambda: _told(job) >= 0.97 * (memory_group.account()[0] + shared),
            within=60, every=0.5, what="all of it is told",
        )  # fmt: skip
        told, (counted, cached) = _told(job), memory_group.account()
        each = sum(procfs.status_sizes(pid).get("RssAnon", 0) for pid in memory_group.members())
        found = {"told": told, "kernel": counted, "cached": cached, "each for itself": each}
        show("MiB", {name: value // MIB for name, value in found.items()})
        end.touch()
        assert pod.wait() == 0
    assert told <= 1.03 * counted + shared + (0 if beside else KERNEL)
    assert each > 1.5 * counted, "the processes share pages"
    assert cached > CACHED * MIB, "a file was read"

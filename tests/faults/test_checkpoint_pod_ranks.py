# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of several DDP ranks that lose processes, sidecars and memory."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import shutil
import signal
from collections.abc import Iterator, Sequence

import pytest

from rover_kf.api import names
from rover_kf.sidecar.slots.rank_assignments import RankAssignments
from tests.support.pods import checkpoint_pod
from tests.support.process_pool.rank_server import RankServer, serving
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

TESTS = pathlib.Path(__file__).parents[1]
KILLS, EVERY, LAST = (4, 9, 13), 2, 16
"""Steps in which all ranks are killed, on both sides of a save and between saves, and in all."""


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    """Loads torch once for all trainings."""
    with serving(TESTS / "support" / "training" / "resumed_training.py") as running:
        yield running


class Job:
    """Pods of several ranks each that train together.

    Args:
        server: forks the ranks.
        folder: for all that the job writes.
        pods: that run.
        counts: of each pod's ranks.
    """

    def __init__(
        self,
        server: RankServer,
        folder: pathlib.Path,
        pods: Sequence[checkpoint_pod.Pod],
        counts: Sequence[int],
    ) -> None:
        self._server, self.pods, self._counts = server, pods, counts
        self.journal = folder / "journal"
        self.journal.mkdir(exist_ok=True)

    def train(self, round_: int, *, dies: int = 0, last: int = LAST) -> list[int]:
        """A round of all ranks; their exit codes."""
        self.begin(round_, dies=dies, last=last)
        return self.wait()

    def wait(self) -> list[int]:
        """Until all ranks have ended; their exit codes."""
        return self._server.wait()

    def begin(self, round_: int, *, dies: int = 0, last: int = LAST) -> None:
        """Start all ranks of a round."""
        size = sum(self._counts)
        port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
        ranks: list[dict[str, str]] = []
        for pod, count in zip(self.pods, self._counts, strict=True):
            for local_rank in range(count):
                given = pod.environment(rank=len(ranks), world_size=size, round_=round_)
                local = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(count)}
                ranks.append({**given, **port, **local})
        work = {"way": "dropout", "steps": last, "dies": dies, "journal": str(self.journal)}
        self._server.start(ranks, **work)

    def losses(self) -> list[dict[str, set[str]]]:
        """Of each rank by step; more than one where a step done again has another loss."""
        found: list[dict[str, set[str]]] = []
        for file in sorted(self.journal.iterdir()):
            each: dict[str, set[str]] = {}
            for line in file.read_text().splitlines():
                kind, _, told = line.partition(" ")
                if kind != "from":
                    each.setdefault(kind, set()).add(told)
            found.append(each)
        return found

    def begins(self) -> list[str]:
        """What each rank's last round began with: step and source."""
        lines = (file.read_text().splitlines() for file in sorted(self.journal.iterdir()))
        return [[line for line in each if line.startswith("from ")][-1] for each in lines]

    def restored(self, pod: int) -> list[str]:
        """Where a pod's ranks said that they resume, in their order."""
        return sorted(told.split(" in ")[0] for told in self.pods[pod].told(names.EVENT_RESTORED))


def _has_asked(pod: checkpoint_pod.Pod, round_: int) -> bool:
    """Whether a rank of the pod has asked what to restore in that round."""
    known = RankAssignments(pod.settings.volume_path / names.ARENA_DIR)  # reads the files anew
    found = [known.get(rank) for rank in (0, 1)]
    return any(one is not None and one.round.number == round_ for one in found)


@contextlib.contextmanager
def _job(
    server: RankServer,
    folder: pathlib.Path,
    *,
    counts: Sequence[int] = (2, 2),
    storage: pathlib.Path | None = None,
    **changes: object,
) -> Iterator[Job]:
    known = {"checkpoint_every": EVERY, "checkpoint_persist_seconds": 3600.0, **changes}
    with checkpoint_pod.pods(folder / "pods", len(counts), storage=storage, **known) as some:
        yield Job(server, folder, some, counts)


def test_ranks_killed_again_and_again_lose_nothing(server, tmp_path):
    """Two pods of two ranks: all of them resume from memory at each kill and train every step."""
    with _job(server, tmp_path) as job:
        for round_, dies in enumerate((*KILLS, 0), 1):
            assert job.train(round_, dies=dies)[0] == (-signal.SIGKILL if dies else 0)
            begins = [told.split()[1:] for told in job.begins()]
            (step,) = {int(step) for step, _ in begins}
            if round_ > 1:  # where all die in a save, the ranks that are not done lose that step
                assert KILLS[round_ - 2] - EVERY <= step <= KILLS[round_ - 2]
                assert {source for _, source in begins} <= {"memory", "peer"}
        assert [len(each) for each in job.losses()] == [LAST] * 4
        assert [pod.told(names.EVENT_CHECKPOINT_WARNING) for pod in job.pods] == [[], []]


def test_a_lost_pods_ranks_start_from_a_peers_memory(server, tmp_path):
    """A pod's memory is lost: its ranks resume from the other pod's copies."""
    with _job(server, tmp_path) as job:
        assert job.train(1, last=8) == [0] * 4
        lost = job.pods[1]
        lost.kill()
        shutil.rmtree(lost.settings.volume_path)
        lost.start()
        assert job.train(2) == [0] * 4
        assert job.begins() == ["from 8 memory"] * 2 + ["from 8 peer"] * 2
        assert job.restored(1) == [
            f"rank {rank} of 4 resumes at step 8 from peer" for rank in (2, 3)
        ]


@pytest.mark.parametrize("counts", [(4,), (1, 2), (3,)])
def test_storage_takes_it_over_to_other_pods(server, tmp_path, counts):
    """All memory is lost: pods of other numbers of ranks resume from storage and put their own
    steps there, from which two pods of two ranks resume again."""
    storage = tmp_path / "pvc"
    for number, how_many in enumerate(((2, 2), counts, (2, 2)), 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        with _job(server, folder, counts=how_many, storage=storage) as job:
            assert job.train(number, last=6 * number) == [0] * sum(how_many)
            source = f"from {6 * (number - 1)} " + ("storage" if number > 1 else "none")
            assert job.begins() == [source] * sum(how_many)


def test_a_sidecar_that_is_killed_while_its_ranks_restore(server, tmp_path):
    """A rank may have its answer already; the sidecar that comes after resumes."""
    with _job(server, tmp_path) as job:
        assert job.train(1, last=8) == [0] * 4
        for round_ in range(2, 6):
            job.begin(round_, last=8 + 2 * round_)
            pod = job.pods[round_ % 2]
            eventually(functools.partial(_has_asked, pod, round_), every=0.001)
            pod.kill()
            pod.start()
            assert job.wait() == [0] * 4
            step = 8 if round_ == 2 else 6 + 2 * round_
            assert job.begins() == [f"from {step} memory"] * 4


def test_pods_compare_their_copies(server, tmp_path):
    """Each rank of each pod takes part in the comparison of replicas."""
    with _job(server, tmp_path, checkpoint_verify_replicas_every=1) as job:
        assert job.train(1, last=8) == [0] * 4
        log = job.pods[0].settings.volume_path / checkpoint_pod.LOG
        eventually(lambda: "step 8 of round 1: 4 ranks hold the same" in log.read_text(), within=60)
        assert job.pods[0].told(names.EVENT_REPLICA_MISMATCH) == []

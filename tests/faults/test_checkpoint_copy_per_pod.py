# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of several DDP ranks that keep what these hold alike once, in the first one's slots."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import shutil
import signal
from collections.abc import Iterator, Sequence

import pytest
import safetensors.torch

from rover_kf.api import names
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint_tools.consolidated_state import open_state
from rover_kf.checkpoint_tools.export import export
from rover_kf.checkpoint_tools.locate import locate
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
        per_pod: of each pod, whether it keeps alike tensors once.
    """

    def __init__(
        self,
        server: RankServer,
        folder: pathlib.Path,
        pods: Sequence[checkpoint_pod.Pod],
        counts: Sequence[int],
        per_pod: Sequence[bool],
    ) -> None:
        self._server, self.pods = server, pods
        self._counts, self.per_pod = counts, per_pod
        self.journal = folder / "journal"
        self.journal.mkdir(exist_ok=True)

    def train(
        self, round_: int, *, dies: int = 0, last: int = LAST, extra: Sequence[int] = ()
    ) -> list[int]:
        """A round of all ranks; their exit codes."""
        self.begin(round_, dies=dies, last=last, extra=extra)
        return self.wait()

    def wait(self) -> list[int]:
        """Until all ranks have ended; their exit codes."""
        return self._server.wait()

    def begin(
        self, round_: int, *, dies: int = 0, last: int = LAST, extra: Sequence[int] = ()
    ) -> None:
        """Start all ranks of a round; those in ``extra`` have one more module."""
        size = sum(self._counts)
        port = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
        ranks: list[dict[str, str]] = []
        for pod, count, per_pod in zip(self.pods, self._counts, self.per_pod, strict=True):
            for local_rank in range(count):
                given = pod.environment(rank=len(ranks), world_size=size, round_=round_)
                local = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(count)}
                how = {names.ENV_CHECKPOINT_COPY_PER: names.COPY_PER_POD} if per_pod else {}
                ranks.append({**given, **port, **local, **how})
        work = {"way": "dropout", "steps": last, "dies": dies, "journal": str(self.journal)}
        self._server.start(ranks, extra=[*extra], **work)

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

    def newest_bytes(self, pod: int) -> list[int]:
        """Of each local rank of a pod, the newest snapshot."""
        home = self.pods[pod].settings.volume_path / names.ARENA_DIR
        return [Arena(home / str(rank)).sealed()[0].length for rank in range(self._counts[pod])]

    def restored(self, pod: int) -> list[str]:
        """Where a pod's ranks said that they resume, in their order."""
        return sorted(told.split(" in ")[0] for told in self.pods[pod].told(names.EVENT_RESTORED))


def _has_asked(pod: checkpoint_pod.Pod, round_: int) -> bool:
    """Whether a rank of the pod has asked what to restore in that round."""
    known = RankAssignments(pod.settings.volume_path / names.ARENA_DIR)  # reads the files anew
    found = [known.get(rank) for rank in (0, 1)]
    return any(one is not None and one.round == round_ for one in found)


@contextlib.contextmanager
def _job(
    server: RankServer,
    folder: pathlib.Path,
    *,
    counts: Sequence[int] = (2, 2),
    per_pod: Sequence[bool] = (True, True),
    storage: pathlib.Path | None = None,
    **changes: object,
) -> Iterator[Job]:
    known = {"checkpoint_every": EVERY, "persist_seconds": 3600.0, **changes}
    with checkpoint_pod.pods(folder / "pods", len(counts), storage=storage, **known) as some:
        yield Job(server, folder, some, counts, per_pod)


def _exported(storage: pathlib.Path, folder: pathlib.Path, ranks: int) -> list[dict[str, bytes]]:
    """What the newest checkpoint holds, put together for each rank."""
    place = locate(str(storage / "demo"))
    state = open_state(place.storage, place.checkpoint())
    found: list[dict[str, bytes]] = []
    for rank in range(ranks):
        path = folder / f"{rank}.safetensors"
        export(state.for_rank(rank), "safetensors", path)
        tensors = safetensors.torch.load_file(path)
        found.append({name: tensor.numpy().tobytes() for name, tensor in tensors.items()})
    return found


def test_ranks_killed_again_and_again_lose_nothing(server, tmp_path):
    """Two pods of two ranks, with dropout of random numbers of their own: all losses, and what is
    on storage in the end, are those of ranks that kept a whole copy each."""
    found = {}
    for name in ("rank", "pod"):
        folder, storage = tmp_path / name, tmp_path / f"{name}-pvc"
        folder.mkdir()
        with _job(server, folder, per_pod=(name == "pod",) * 2, storage=storage) as job:
            for round_, dies in enumerate((*KILLS, 0), 1):
                assert job.train(round_, dies=dies)[0] == (-signal.SIGKILL if dies else 0)
            assert all(told.endswith(" memory") for told in job.begins())
            sizes = [job.newest_bytes(pod) for pod in (0, 1)]
            assert [job.pods[i].told(names.EVENT_CHECKPOINT_WARNING) for i in (0, 1)] == [[], []]
            found[name] = job.losses(), _exported(storage, folder, 4), sizes
    (losses, state, whole), (per_pod_losses, per_pod_state, once) = found["rank"], found["pod"]
    assert [len(each) for each in losses] == [LAST] * 4
    assert per_pod_losses == losses
    assert per_pod_state == state
    print(f"snapshots where each rank has a copy: {whole}, where each pod has one: {once}")
    for (first, second), (lead, light) in zip(whole, once, strict=True):
        assert lead <= first + 256  # a few more words in the header
        assert light < second / 4


def test_a_lost_pods_ranks_start_from_one_copy_of_a_peers(server, tmp_path):
    """A pod's memory is lost: its first rank gets the other pod's copy, its second one starts from
    that, and training goes on as if nothing had been lost but the pod's own random numbers."""
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
        lead, light = job.newest_bytes(1)
        assert light < lead / 4


@pytest.mark.parametrize(
    ("counts", "per_pod"),
    [((4,), (True,)), ((1, 2), (True, True)), ((2, 2), (True, False)), ((3,), (False,))],
)
def test_storage_takes_it_over_to_other_pods(server, tmp_path, counts, per_pod):
    """All memory is lost: pods of other numbers of ranks, some with a copy a rank, go on from
    storage, put their own steps there, and from those two pods of two ranks go on again."""
    storage = tmp_path / "pvc"
    for number, (how_many, how) in enumerate(
        (((2, 2), (True, True)), (counts, per_pod), ((2, 2), (True, True))), 1
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with _job(server, folder, counts=how_many, per_pod=how, storage=storage) as job:
            assert job.train(number, last=6 * number) == [0] * sum(how_many)
            source = f"from {6 * (number - 1)} " + ("storage" if number > 1 else "none")
            assert job.begins() == [source] * sum(how_many)


def test_a_lead_that_is_lost_alone_comes_from_the_other_pod(server, tmp_path):
    """The first rank's slots of a pod are gone, the second one's are there: it keeps its own."""
    with _job(server, tmp_path) as job:
        assert job.train(1, last=8) == [0] * 4
        arena = Arena(job.pods[1].settings.volume_path / names.ARENA_DIR / "0")
        for seal in arena.sealed():
            arena.discard(seal)
        assert job.train(2) == [0] * 4
        assert job.begins() == ["from 8 memory"] * 2 + ["from 8 peer"] * 2


def test_a_sidecar_that_is_killed_while_its_ranks_restore(server, tmp_path):
    """The first rank may have had its answer, or not: the one that comes after it goes on."""
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


def test_light_slots_alone_are_no_state(server, tmp_path):
    """Nobody has the weights any more: an error that says so, no training from the begin."""
    with _job(server, tmp_path, counts=(2,), per_pod=(True,)) as job:
        assert job.train(1, last=8) == [0] * 2
        arena = Arena(job.pods[0].settings.volume_path / names.ARENA_DIR / "0")
        for seal in arena.sealed():
            arena.discard(seal)
        assert job.train(2) == [1, 1]
        assert job.begins() == ["from 0 none"] * 2  # those of the round before


def test_pods_compare_their_copies(server, tmp_path):
    """Each pod's copy stands for its ranks in the comparison of replicas."""
    with _job(server, tmp_path, checkpoint_check_every=1) as job:
        assert job.train(1, last=8) == [0] * 4
        log = job.pods[0].settings.volume_path / checkpoint_pod.LOG
        eventually(lambda: "step 8: 4 ranks hold the same" in log.read_text(), within=60)
        assert job.pods[0].told(names.EVENT_REPLICA_MISMATCH) == []


@pytest.mark.parametrize("before", [True, False])
def test_ranks_that_keep_it_another_way_than_before(server, tmp_path, before):
    """Slots in memory are from before the annotation changed: those that other pods have been sent
    to stay until they have fetched them, and each rank gets its state of them."""
    with _job(server, tmp_path, per_pod=(before,) * 2) as job:
        assert job.train(1, last=8) == [0] * 4
        job.per_pod = (not before,) * 2
        assert job.train(2, last=8) == [0] * 4
        assert [told.split()[1] for told in job.begins()] == ["8"] * 4
        for pod in job.pods:
            sealed = Arena(pod.settings.volume_path / names.ARENA_DIR / "0").sealed()
            assert sorted((seal.step, seal.ranks) for seal in sealed) == [(8, 1), (8, 2)]


def test_what_the_first_rank_does_not_save_ends_no_restart(server, tmp_path):
    """The second rank of each pod has a module more: the second save is an error, not the restore
    after the next crash."""
    with _job(server, tmp_path) as job:
        assert job.train(1, extra=(1, 3))[1::2] == [1, 1]
        assert max(map(int, job.losses()[1])) == 2 * EVERY
    (tmp_path / "each").mkdir()
    with _job(server, tmp_path / "each", per_pod=(False, False)) as job:
        assert job.train(1, extra=(1, 3), last=8) == [0] * 4

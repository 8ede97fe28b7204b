# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of a pod's trainer and sidecar at random instants while steps are saved and persisted as
fast as they can be: what is restored is whole, and not older than what was safe."""

from __future__ import annotations

import ast
import collections
import pathlib
import random
import shutil

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.coordinator.replication import locations
from rover_kf.coordinator.restore import plan_store
from rover_kf.sidecar import state_replica
from tests.support.pods import launcher_pods
from tests.support.pods.checkpoint_world import in_memory
from tests.support.pods.sidecar_variables import sidecar_variables
from tests.support.process_pool.forked_pod import FORM, LOG, Forks, Process
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

KILLS, SEED = 200, 20261121
_SLOT_FILES = ("assignment.json", "control", "slot-0", "slot-1")
_LONGEST_SECONDS = 0.08
"""Of a life between what a process waits for and its death."""


class Pod:
    """One pod whose processes die; its memory is lost only where the test says so."""

    def __init__(self, root: pathlib.Path) -> None:
        self.home, self.storage = root / "home", DirectoryStorage(root / "pvc" / "demo")
        self.home.mkdir(parents=True)
        (root / "tmp").mkdir()
        (self.home / "token").write_text("a token")
        self.arenas = [Arena(self.home / names.ARENA_DIR / str(r)) for r in range(FORM.world_size)]
        here = f"{launcher_pods.network()}.1"  # each test at once would ask the other's sidecar
        address = {
            names.ENV_POD_IP: here, names.ENV_COORDINATOR: here,
            names.ENV_JOB: "demo", names.ENV_NAMESPACE: "default",
            names.ENV_POD_NAME: "demo-worker-0", names.ENV_POD_UID: "uid-0",
            names.ENV_REPLICA_TYPE: "worker", names.ENV_REPLICA_INDEX: "0",
            names.ENV_NODES: "1", names.ENV_MIN_NODES: "1", names.ENV_MAX_NODES: "1",
        }  # fmt: skip
        policy = {
            names.ENV_HOME: str(self.home), names.ENV_ARENA_BYTES: str(64 << 20),
            "checkpoint.path": str(root / "pvc"), "checkpoint.keep": "2",
            "checkpoint.persist-seconds": "0", names.ENV_AUTH: "shared",
            names.ENV_TOKEN_HOME: str(self.home), "TMPDIR": str(root / "tmp"),
        }  # fmt: skip
        self.forks = Forks(sidecar_variables({**address, **policy}), root / "sidecar.log")
        self.sidecar: Process | None = None
        self.trainer: Process | None = None
        self.round = 0

    def start(self) -> None:
        """Start what is dead."""
        if self.sidecar is None:
            self.sidecar = self.forks.start("sidecar")
        if self.trainer is None:
            self.round += 1
            self.log.unlink(missing_ok=True)
            self.trainer = self.forks.start("trainer", **{names.ENV_ROUND: str(self.round)})

    def kill(self, what: str) -> None:
        """SIGKILL."""
        process: Process = getattr(self, what)
        process.kill()
        setattr(self, what, None)

    def close(self) -> None:
        """End all."""
        for what in ("trainer", "sidecar"):
            if getattr(self, what) is not None:
                self.kill(what)
        self.forks.close()

    @property
    def log(self) -> pathlib.Path:
        """Of the newest trainer."""
        return self.home / LOG

    def lines(self, kind: str) -> list[list[str]]:
        """What the trainer has put down of a kind."""
        text = self.log.read_text() if self.log.exists() else ""
        found = [line.partition(" ")[::2] for line in text.splitlines()]
        failed = [ast.literal_eval(words) for name, words in found if name == "failed"]
        assert not failed, "".join(failed)
        return [words.split(" ") for name, words in found if name == kind]

    def sealed(self) -> int:
        """The newest step that this trainer has in the memory of all ranks."""
        return max((int(step) for (step,) in self.lines("sealed")), default=0)

    def durable(self) -> int:
        """The newest step on storage."""
        return self.storage.complete_folders()[-1].step if self.storage.complete_folders() else 0

    def is_persisting(self) -> bool:
        """Whether a step is on its way to storage."""
        folders, whole = self.storage.folders(), self.storage.complete_folders()
        return bool(folders) and folders[-1] not in whole

    def is_copying(self) -> bool:
        """Whether a slot is being filled."""
        return any(len(arena.sealed()) < 2 for arena in self.arenas)

    def lose_memory(self) -> None:
        """As when the pod is lost and another takes its place."""
        memory = self.home / names.ARENA_DIR
        if memory.exists():  # not where both died before they had made it
            shutil.rmtree(memory)


@pytest.fixture
def pod():
    """A pod in memory; its processes leave nothing beside its folder."""
    shared = pathlib.Path("/dev/shm")
    before = set(shared.iterdir())
    with in_memory() as root:
        pod = Pod(root)
        yield pod
        pod.close()
    # Others run meanwhile: embedded jobs, tests with a folder in memory, and for a moment loaders.
    others = ("rkf-", "rover-")
    new = {path for path in shared.iterdir() if not path.name.startswith(others)} - before
    eventually(lambda: not any(path.exists() for path in new), what=f"an end of {new}")


class Account:
    """What must still be there after a death."""

    def __init__(self, pod: Pod) -> None:
        self._pod, self._round = pod, 0
        self.least, self.seen = 0, collections.Counter[str]()

    def died(self, kind: str) -> None:
        """Compare what the trainer started from; take down what was safe at the death."""
        self.seen[kind] += 1
        restored = self._pod.lines("restored")
        if restored and self._round < self._pod.round:
            ((step, source),) = restored  # Every byte of it was compared in the trainer.
            assert int(step) >= self.least, (source, self._pod.round)
            self.seen[f"from {source}"] += 1
            self._round, self.least = self._pod.round, int(step)
        if self._pod.round == self._round:
            self.least = max(self.least, self._pod.sealed())
            self._spare()
        self.seen["in a persist"] += self._pod.is_persisting()
        self.seen["in a copy"] += self._pod.is_copying()

    def _spare(self) -> None:
        """Of a rank's two sealed slots the older one was being read, and the newest was given up
        for the next step, which came to nothing: then the other ranks may have no step with it in
        common, and what is on storage is safe."""
        given_up = [int(newest) for newest, _ in self._pod.lines("over")[-1:]]
        for rank, newest in self._pod.lines("fills")[-FORM.world_size :]:
            # It may have died before it could tell over which slot.
            left = {seal.state.step for seal in self._pod.arenas[int(rank)].sealed()}
            given_up += {int(newest)} - left
        if self.least in given_up:
            self.least = self._pod.durable()
            self.seen["newest given up"] += 1

    def lost_memory(self) -> None:
        """Only what is on storage is safe."""
        self.seen["memory lost"] += 1
        self.least = self._pod.durable()


def test_processes_killed_at_any_instant_lose_no_step_that_was_safe(pod):
    """Trainer, sidecar or both; sometimes with the pod's memory, sometimes while they start."""
    chance, account = random.Random(SEED), Account(pod)
    pod.start()
    eventually(pod.durable, within=60)  # before there is one, see Account._spare
    for number in range(KILLS):
        pod.start()
        if number == 0 or chance.random() < 0.8:
            eventually(lambda: pod.lines("restored"), within=60, every=0.002)
        assert not pod.trainer.ends_within(chance.uniform(0, _LONGEST_SECONDS)), pod.lines("")
        kinds = ["trainer", "trainer, sidecar", "sidecar, trainer"]
        kind = chance.choice([*kinds, "sidecar"] if pod.lines("restored") else kinds)
        for what in kind.split(", "):
            pod.kill(what)
        account.died(kind)
        if pod.trainer is pod.sidecar is None and chance.random() < 0.2:
            pod.lose_memory()
            account.lost_memory()
    print(f"{KILLS} kills, {account.least} steps: {dict(sorted(account.seen.items()))}")
    assert min(account.seen[what] for what in ("from memory", "from storage")) > 10
    assert min(account.seen[what] for what in ("in a persist", "in a copy")) > 10
    _check_nothing_is_left(pod, account)


def _check_nothing_is_left(pod: Pod, account: Account) -> None:
    """After one more life that ends with a step in the memory of both ranks: two checkpoints on
    storage, perhaps the begin of a newer one, the pod's known files, and no others."""
    given_up = -1
    while account.seen["newest given up"] != given_up:
        given_up = account.seen["newest given up"]
        pod.start()
        eventually(lambda: pod.sealed() > account.least, within=60)
        pod.kill("trainer")
        account.died("trainer")
    eventually(lambda: pod.durable() >= account.least, within=60)
    eventually(lambda: _is_tidy(pod.storage), what="a tidy storage")
    # A step that was sealed and not told yet may become durable still, and the oldest one go.
    pod.kill("sidecar")
    for folder in pod.storage.complete_folders():
        pod.storage.verify(folder)
    ranks = {f"{names.ARENA_DIR}/{rank}" for rank in range(FORM.world_size)}
    slots = {f"{rank}/{file}" for rank in ranks for file in _SLOT_FILES}
    kept = {
        plan_store.PLAN_FILE,
        locations.LOCATIONS_FILE,
        state_replica.COORDINATOR_FILE,
        state_replica.REPLICA_FILE,
    }
    run = {names.RUN_DIR, names.SOCKET, *(f"{names.RUN_DIR}/{name}" for name in kept)}
    known = {names.ARENA_DIR, LOG, "token", *run, *ranks, *slots}
    assert {str(path.relative_to(pod.home)) for path in pod.home.rglob("*")} == known
    assert not list((pod.home.parent / "tmp").iterdir())


def _is_tidy(storage: DirectoryStorage) -> bool:
    """Whether there are two checkpoints, each of what its manifest names and no more."""
    whole = storage.complete_folders()
    try:
        found = [{path.name for path in pathlib.Path(kept.location).iterdir()} for kept in whole]
        named = [{file.name for file in storage.read_manifest(kept).files} for kept in whole]
    except (FileNotFoundError, errors.StorageError):  # the oldest is being removed
        return False
    # What nobody finishes any more goes with the next checkpoint.
    begun = [folder for folder in storage.folders() if folder not in whole]
    files = [{manifest.NAME, *ranks} for ranks in named]
    return len(whole) == 2 and found == files and all(folder > whole[-1] for folder in begun)

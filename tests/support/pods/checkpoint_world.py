# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""All sidecars of a job in this process, as far as checkpoints on storage need them, no network.

The parts are the real ones: slots in memory, ranks' files, the coordinator's commits, the restorer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    ArenaRequest,
    RankPersisted,
    RestoreReply,
    RestoreRequest,
)
from rover_kf.api.status import Ack
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest
from rover_kf.checkpoint.storage import claim
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.rate_limit import RateLimitedWriter, RateLimiter
from rover_kf.checkpoint.storage.syscalls import Syscalls
from rover_kf.coordinator.commit.commit_service import CommitService
from rover_kf.sidecar.persist import rank_file
from rover_kf.sidecar.restore.restorer import Restorer
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from rover_kf.sidecar.slots.server import SlotServer
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.verifier import SlotVerifier
from tests.support.pods import checkpoint_pod
from tests.support.states import identities
from tests.support.states.synthetic_states import Form

JOB = "demo"


class Inline(concurrent.futures.ThreadPoolExecutor):
    """Calls at once what is for another thread: nothing waits for a turn of the machine's cores."""

    def submit(self, call, /, *arguments, **named):
        future: concurrent.futures.Future[object] = concurrent.futures.Future()
        try:
            future.set_result(call(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits gets it
            future.set_exception(error)
        return future


@contextlib.contextmanager
def in_memory() -> Iterator[pathlib.Path]:
    """A folder in memory: thousands of small disks may be made in it."""
    with tempfile.TemporaryDirectory(prefix="rover-", dir="/dev/shm") as folder:
        yield pathlib.Path(folder)


@contextlib.contextmanager
def running() -> Iterator[asyncio.Runner]:
    """A runner of the worlds' coroutines."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(Inline())
        yield runner


class Reporting(DirectoryStorage):
    """Puts down after which call of the file system a step was said to be durable."""

    def __init__(self, root: pathlib.Path, files: Syscalls) -> None:
        super().__init__(root, files)
        self.files = files
        self.reported: list[tuple[int, int]] = []
        """Calls done, step."""

    def write_manifest(self, content: Manifest) -> CheckpointFolder:
        folder = super().write_manifest(content)
        self.note(content.state.step)
        return folder

    def note(self, step: int) -> None:
        self.reported.append((len(getattr(self.files, "calls", ())), step))


class Here:
    """The coordinator in the same process."""

    def __init__(self) -> None:
        self.commits: CommitService | None = None

    async def call_coordinator(self, path, message, reply):
        assert self.commits is not None
        ask = {
            names.PATH_COMMIT_RESOLVE: self.commits._barrier.wait,
            names.PATH_COMMIT_READ: self.commits._barrier.on_read,
            names.PATH_COMMIT_DURABLE: self.commits._committer.on_rank_durable,
        }
        found = await ask[path](message)
        assert isinstance(found, reply)
        return found

    @contextlib.asynccontextmanager
    async def get(self, address, path, *, offset):
        raise errors.ClusterUnavailable(f"{address}{path} from {offset}")
        yield


class World:
    """A life of the job: all its pods start with empty memory.

    Args:
        home: for the slots.
        top: the storage; survives.
        form: of the state.
        runner: of coroutines.
        files: how the storage's files are changed.
        keep: how many checkpoints stay.
        namespace: of the job.
    """

    def __init__(
        self,
        home: pathlib.Path,
        top: pathlib.Path,
        form: Form,
        runner: asyncio.Runner,
        *,
        files: Syscalls | None = None,
        keep: int = 1,
        namespace: str = "default",
    ) -> None:
        self.form, self.story, self._runner = form, checkpoint_pod.Told(), runner
        self.storage = Reporting(top / JOB, files or Syscalls())
        changes = {
            "job": JOB,
            "namespace": namespace,
            "checkpoint_path": str(top),
            "checkpoint_keep": keep,
        }
        settings = [
            checkpoint_pod.settings_of(home / str(rank), pod=f"pod-{rank}", **changes)
            for rank in range(form.world_size)
        ]
        self._here, self._settings = Here(), settings[0]
        here = self._here
        self.commits = self.start_coordinator()
        self.slots = [PodSlots(item) for item in settings]
        self._restorers = [
            Restorer(
                item,
                SlotVerifier(slots),
                self.storage,
                here,
                self.story,
                server=SlotServer(slots),
            )
            for item, slots in zip(settings, self.slots, strict=True)
        ]

    def start_coordinator(self) -> CommitService:
        """A coordinator, which takes the place of the one before."""
        made = CommitService(self._settings, self.story, self._here, storage=self.storage)
        self._here.commits = self.commits = made
        return made

    def forget(self) -> None:
        """The slots hold nothing, as those of new pods."""
        for slots in self.slots:
            for seal in slots.arena(0).sealed():
                slots.arena(0).discard(seal)

    def begin(self) -> int:
        """The coordinator looks at the storage; number of the first round."""
        number = self._runner.run(self.commits.scan_storage()).first_round
        if self.commits.durable_step is not None:
            self.storage.note(self.commits.durable_step)  # Whoever waits for it is told so now.
        return number

    def save(self, step: int, round_: int) -> None:
        """Every rank seals its slot."""
        for rank in range(self.form.world_size):
            self.save_rank(rank, step, round_)

    def save_rank(self, rank: int, step: int, round_: int) -> None:
        """One does."""
        content = self.form.bytes_of(step, round_, rank)
        self.slots[rank].allocate(ArenaRequest(0, len(content)))
        with self.slots[rank].arena(0).fill() as filling:
            os.pwrite(filling.descriptor, content, 0)
            filling.seal(
                state=identities.state(step, round_), length=len(content), rank=rank,
                world_size=self.form.world_size, replicated=self.form.replicated,
                pieces=self.form.pieces,
            )  # fmt: skip

    def write(self, rank: int, step: int, round_: int) -> RankPersisted:
        """A rank's file of a step in its slots; its report."""
        slots = self.slots[rank]
        seal = next(seal for seal in slots.arena(0).sealed() if seal.state.step == step)
        assignment = RankAssignment(rank, self.form.world_size, identities.round_id(round_))
        slots.assignments.set(0, assignment)  # Its pod knows of no later round.
        return rank_file.write_rank_file(
            RateLimitedWriter(self.storage, RateLimiter(0)), slots, 0, seal, assignment
        )

    def report(self, durable: RankPersisted) -> Ack:
        """Give the coordinator a rank's report."""
        return self._runner.run(self.commits._committer.on_rank_durable(durable))

    def persist(self, step: int, round_: int, order: Sequence[int] = (0, 1)) -> None:
        """Make a step durable: files and reports in that order of ranks."""
        self.save(step, round_)
        for rank in order:
            assert self.report(self.write(rank, step, round_)).done

    def restore(self, round_: int) -> tuple[int, int]:
        """What all ranks restore, every byte checked: step and the round that made it; 0, 0 if
        there is nothing."""
        replies = self._runner.run(self._restore_all(round_))
        steps = {reply.step for reply in replies}
        assert len(steps) == 1
        (step,) = steps
        if step is None:
            return 0, 0
        rounds = {self._check(rank, reply) for rank, reply in enumerate(replies)}
        assert len(rounds) == 1
        return step, rounds.pop()

    async def _restore_all(self, round_: int) -> list[RestoreReply]:
        size = self.form.world_size
        asked = [
            restorer.restore(
                RestoreRequest(
                    0, rank, size, identities.round_id(round_), requested=self.form.wanted(rank)
                )
            )
            for rank, restorer in enumerate(self._restorers)
        ]
        return await asyncio.gather(*asked)

    def is_tidy(self, step: int) -> bool:
        """Whether the storage holds that step's checkpoint and nothing else."""
        found = {path.name for path in self.storage.root.rglob("*")}
        found -= {claim.OWNER_FILE, claim.GENERATIONS, "0"}
        files = {f"rank-{rank:05d}.safetensors" for rank in range(self.form.world_size)}
        (folder,) = self.storage.folders()
        return folder.step == step and found == {folder.name, "manifest.json", *files}

    def _check(self, rank: int, reply: RestoreReply) -> int:
        data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
        return self.form.check(data, reply.step, rank)

    def warnings(self) -> list[str]:
        """Messages of Warning events."""
        return [message for _, message, warning in self.story.lines if warning]

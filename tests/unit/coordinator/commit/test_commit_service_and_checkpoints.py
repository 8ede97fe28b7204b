# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's half of checkpoints, over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pathlib
import threading

import crc32c
import pytest
from aiohttp.test_utils import TestClient, TestServer

from rover_kf.api import codec, names
from rover_kf.api.checkpoints import (
    PersistAborted,
    PersistOrder,
    PersistOrderRequest,
    RankPersisted,
    RestoreStepReply,
    RestoreStepRequest,
    SlotInfo,
    SlotSealed,
    WaitRequest,
)
from rover_kf.api.replication import ReplicateOrder, ReplicateRequest
from rover_kf.api.status import Ack
from rover_kf.checkpoint.format.manifest import CheckpointFolder, Manifest, folder_name
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.factory import open_storage
from rover_kf.checkpoint.storage.storage_protocol import Storage
from rover_kf.coordinator.commit.commit_service import RESOLVE_TIMEOUT, CommitService
from rover_kf.coordinator.restore import plan_store
from rover_kf.coordinator.restore.barrier import BarrierTimeout
from rover_kf.sidecar.event_log import MAX_MESSAGE_LENGTH
from rover_kf.sidecar.http.app import make_application
from rover_kf.sidecar.http.peer_client import HttpPeerClient
from rover_kf.sidecar.settings import SidecarSettings
from tests.support.pods import checkpoint_pod
from tests.support.states import identities
from tests.support.waiting import eventually


def _stored(settings: SidecarSettings) -> Storage | None:
    path = settings.policy.checkpoint.path
    return open_storage(path, settings.job) if path else None


class Coordinator:
    """Commits behind its routes."""

    def __init__(
        self, home: pathlib.Path, *, resolve: BarrierTimeout = RESOLVE_TIMEOUT, **changes: object
    ) -> None:
        self.story = checkpoint_pod.Told()
        settings = checkpoint_pod.settings_of(home, **changes)
        peers, stored = HttpPeerClient(settings), _stored(settings)
        self.commits = CommitService(
            settings, self.story, peers, storage=stored, resolve_timeout=resolve
        )
        self.root = home / "pvc" / "demo"
        self._client: TestClient | None = None

    async def __aenter__(self):
        self._client = TestClient(TestServer(make_application(self.commits.routes(), None)))
        await self._client.start_server()
        return self

    async def __aexit__(self, *_):
        await self._client.close()

    def post(self, path: str, message: object):
        return self._client.post(path, data=codec.dumps(message))

    async def ask(self, path: str, message: object, reply: type = Ack) -> object:
        async with self.post(path, message) as response:
            data = await response.read()
            return codec.loads(reply, data) if response.status == 200 else json.loads(data)

    async def resolve(self, rank: int, *held: SlotInfo, round_: int = 1, world: int = 2) -> object:
        return await self.ask(
            names.PATH_COMMIT_RESOLVE,
            RestoreStepRequest(
                round=identities.round_id(round_), rank=rank, world_size=world, slots=held
            ),
            RestoreStepReply,
        )

    async def named(self, poll: PersistOrderRequest) -> PersistOrder:
        """What shall be persisted."""
        return await self.ask(names.PATH_COMMIT_NAMED, poll, PersistOrder)

    async def asked(self, *ranks: int) -> None:
        """Wait until these ranks' questions are there."""
        known = lambda: set(self.commits._barrier._requests) == set(ranks)  # noqa: E731 - one condition
        await asyncio.to_thread(eventually, known, what=f"questions of ranks {ranks}")

    def durable(
        self, step: int, *, round_: int = 1, content: bytes = b"state", world: int = 1
    ) -> RankPersisted:
        """Write rank 0's file, of a world's only rank if nothing else is said, as its sidecar
        does."""
        folder = self.root / folder_name(identities.state(step, round_))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank-00000.safetensors").write_bytes(content)
        state = identities.state(step, round_)
        return RankPersisted(
            "demo-worker-0", 0, world, state, state, replicated=True,
            file="rank-00000.safetensors", file_bytes=len(content),
            checksum=crc32c.crc32c(content),
        )  # fmt: skip


class Slow(DirectoryStorage):
    """Reading a whole checkpoint takes as long as a test wants."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.begun, self.done = threading.Event(), threading.Event()
        self.reads = 0

    def load(self, folder: CheckpointFolder) -> Manifest:
        self.reads += 1
        self.begun.set()
        assert self.done.wait(30)
        return super().load(folder)


HELD = SlotInfo(
    pod="p",
    address="10.0.0.1:7411",
    local_rank=0,
    rank=0,
    world_size=2,
    replicated=True,
    snapshot_bytes=1,
    checksum=1,
    state=identities.state(20),
)


def test_all_ranks_get_one_answer(tmp_path):
    """The answer comes when the last rank has asked, also to a rank that asks again."""

    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            first = asyncio.create_task(coordinator.resolve(0, HELD))
            await coordinator.asked(0)
            assert not first.done()
            second = await coordinator.resolve(1)
            assert (await first).source == "memory"
            assert (second.state.step, second.source, second.slots) == (20, "peer", (HELD,))
            assert await coordinator.resolve(1) == second
            assert coordinator.commits.sealed_step == 20

    asyncio.run(scene())


def test_a_large_world_that_is_cut_another_way_costs_no_square_of_its_ranks(tmp_path):
    """Each rank's answer has the slots of all: kept and sent as they are those of 512 ranks took
    more than the memory of a sidecar, which was killed at each attempt."""
    saved, world = 96, 95
    slots = [
        dataclasses.replace(
            HELD, pod=f"demo-worker-{rank}", rank=rank, world_size=saved, replicated=False,
            pieces=True,
        )
        for rank in range(saved)
    ]  # fmt: skip

    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            (tmp_path / names.RUN_DIR).mkdir()
            others = [
                asyncio.create_task(coordinator.resolve(rank, slots[rank], world=world))
                for rank in range(1, world)
            ]
            asked = RestoreStepRequest(
                round=identities.round_id(1), rank=0, world_size=world, slots=(slots[0], slots[-1])
            )
            async with coordinator.post(names.PATH_COMMIT_RESOLVE, asked) as response:
                sent = int(response.headers["Content-Length"])
                answers = [codec.loads(RestoreStepReply, await response.read())]
            answers += await asyncio.gather(*others)
        for rank, answer in enumerate(answers):
            assert answer.slots == (slots[rank], *slots[:rank], *slots[rank + 1 :])
        assert sent < 1 << 13
        assert (tmp_path / names.RUN_DIR / plan_store.PLAN_FILE).stat().st_size < 1 << 18
        async with Coordinator(tmp_path) as another:
            await another.commits.scan_storage()
            for rank in (0, 7, world - 1):
                assert await another.resolve(rank, world=world) == answers[rank]

    asyncio.run(scene())


def test_a_rank_that_never_asks_is_named(tmp_path):
    """After the limit the others get an error that says which ranks did not call restore."""

    async def scene() -> None:
        async with Coordinator(tmp_path, resolve=BarrierTimeout(0.5, 0.2)) as coordinator:
            refused = await coordinator.resolve(0, world=3)
            assert refused["error"] == "CheckpointError"
            assert "ranks [1, 2] of round 1" in refused["message"]

    asyncio.run(scene())


def test_a_rank_that_is_long_in_coming_is_waited_for_and_told(tmp_path):
    """It has a model to download first, which the other has already."""

    async def scene() -> None:
        async with Coordinator(
            tmp_path, resolve=dataclasses.replace(RESOLVE_TIMEOUT, warn_after=0.1)
        ) as coordinator:
            waiting = asyncio.create_task(coordinator.resolve(0, HELD))
            told = lambda: coordinator.story.lines  # noqa: E731 - one condition
            await asyncio.to_thread(eventually, told, what="it is told")
            assert (await coordinator.resolve(1)).state.step == (await waiting).state.step == 20
            ((reason, message, is_warning),) = coordinator.story.lines
            assert (reason, is_warning) == (names.EVENT_CHECKPOINT_WARNING, True)
            assert "ranks [1] of round 1 have not called restore" in message

    asyncio.run(scene())


def test_a_checkpoint_may_take_longer_to_read_than_ranks_wait_for_each_other(tmp_path):
    """All have asked: none is missing. Who asked last may hang up meanwhile, and ask again."""
    storage = Slow(tmp_path / "pvc" / "demo")

    async def scene() -> None:
        changes = {"checkpoint_path": str(tmp_path / "pvc"), "resolve": BarrierTimeout(0.2, 0.1)}
        async with Coordinator(tmp_path, **changes) as coordinator:
            await coordinator.ask(names.PATH_COMMIT_DURABLE, coordinator.durable(5))
            coordinator.commits._storage = storage
            ask = coordinator.commits._barrier.wait
            asked = [
                ask(
                    RestoreStepRequest(
                        round=identities.round_id(2), rank=rank, world_size=3, slots=()
                    )
                )
                for rank in range(3)
            ]
            *waiting, last = map(asyncio.create_task, asked)
            await asyncio.to_thread(storage.begun.wait)
            last.cancel()
            waiting.append(
                asyncio.create_task(
                    ask(
                        RestoreStepRequest(
                            round=identities.round_id(2), rank=2, world_size=3, slots=()
                        )
                    )
                )
            )
            await asyncio.wait(waiting, timeout=0.5)
            storage.done.set()
            assert {(await answer).state.step for answer in waiting} == {5}
            assert storage.reads == 1

    asyncio.run(scene())


def test_a_new_round_does_not_take_over_what_an_older_one_found(tmp_path):
    """A rank was lost while storage was read: what is found for the old round changes nothing."""
    storage = Slow(tmp_path / "pvc" / "demo")

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            await coordinator.ask(names.PATH_COMMIT_DURABLE, coordinator.durable(5))
            coordinator.commits._storage = storage
            old = asyncio.create_task(coordinator.resolve(0, round_=2, world=1))
            await asyncio.to_thread(storage.begun.wait)
            assert (await coordinator.resolve(0, HELD, round_=3, world=1)).state.step == 20
            assert "round 3 has begun" in (await old)["message"]
            storage.done.set()
            await asyncio.get_running_loop().shutdown_default_executor()
            assert coordinator.commits.sealed_step == 20

    asyncio.run(scene())


def test_asks_of_an_older_round_are_refused(tmp_path):
    """Those that wait are told at once that a new round began; later ones are refused, too."""

    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            waiting = asyncio.create_task(coordinator.resolve(0, world=2))
            await coordinator.asked(0)
            assert (await coordinator.resolve(0, round_=2, world=1)).source == "none"
            assert "round 2 has begun" in (await waiting)["message"]
            assert "round 1 is over" in (await coordinator.resolve(1))["message"]
            assert (await coordinator.resolve(5, round_=3))["error"] == "InputError"

    asyncio.run(scene())


def test_a_durable_report_is_committed_and_told(tmp_path):
    """The manifest is there before the answer; waiters are woken; a stale report is refused."""

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            wait = WaitRequest(identities.state(5), "durable", 30.0)
            waiting = asyncio.create_task(coordinator.ask(names.PATH_COMMIT_WAIT, wait))
            report = coordinator.durable(5)
            assert (await coordinator.ask(names.PATH_COMMIT_DURABLE, report)).done
            assert (await waiting).done
            storage = DirectoryStorage(coordinator.root)
            assert storage.verify(storage.complete_folders()[0]).state.step == 5
            assert coordinator.commits.durable_step == 5
            assert [line[0] for line in coordinator.story.lines] == [names.EVENT_DURABLE]
            again = await coordinator.ask(names.PATH_COMMIT_DURABLE, report)
            assert (again.done, again.reason) == (
                False,
                "late: step 5 of round 1 is committed already",
            )
            await coordinator.resolve(0, HELD, round_=3, world=1)
            stale = await coordinator.ask(names.PATH_COMMIT_DURABLE, coordinator.durable(9))
            assert "round 1 is over" in stale.reason
            short = WaitRequest(identities.state(9), "durable", 0.05)
            assert not (await coordinator.ask(names.PATH_COMMIT_WAIT, short)).done

    asyncio.run(scene())


def test_a_report_of_a_file_that_is_not_there_is_no_commit(tmp_path):
    """The coordinator looks for itself: a missing or shorter file is StorageError."""

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            report = coordinator.durable(5)
            longer = dataclasses.replace(report, file_bytes=6)
            refused = await coordinator.ask(names.PATH_COMMIT_DURABLE, longer)
            assert refused["error"] == "StorageError"
            gone = dataclasses.replace(
                report, state=identities.state(6), origin=identities.state(6)
            )
            assert (await coordinator.ask(names.PATH_COMMIT_DURABLE, gone))["error"] == (
                "StorageError"
            )
            assert coordinator.commits.durable_step is None
            assert (await coordinator.ask(names.PATH_COMMIT_DURABLE, report)).done

    asyncio.run(scene())


def test_what_was_given_up_takes_no_room_once_nobody_writes_it(tmp_path):
    """Rank 1's storage refuses each step, rank 0's files are written. They go when both have come
    to a newer step, and not while rank 0 may still write the older one."""

    def give_up(step: int, pause: float = 5.0) -> PersistAborted:
        return PersistAborted(
            pod="p",
            rank=1,
            reason="No space left",
            pause_seconds=pause,
            ranks=2,
            state=identities.state(step),
        )

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            left = lambda: sorted(path.name for path in coordinator.root.glob("step-*"))  # noqa: E731
            given_up, durable = names.PATH_COMMIT_GIVEN_UP, names.PATH_COMMIT_DURABLE
            steps = [folder_name(identities.state(step)) for step in (1, 2, 3)]
            for step in (1, 2):
                report = coordinator.durable(step, world=2)
                await coordinator.ask(given_up, give_up(step))
                assert left() == steps[:step]  # rank 0 is behind
                assert (await coordinator.ask(durable, report)).done
            await coordinator.ask(given_up, give_up(2, 0.0))  # no refusal of storage
            assert left() == steps[:2]
            await coordinator.ask(given_up, give_up(2))
            assert left() == steps[1:2]
            assert (await coordinator.ask(durable, coordinator.durable(3))).done
            assert left() == steps[2:]
            assert coordinator.story.lines[0][0] == names.EVENT_DURABLE

    asyncio.run(scene())


def test_rounds_start_above_everything_on_storage(tmp_path):
    """Also above unfinished folders of a crash; what is committed is known at once."""
    storage = DirectoryStorage(tmp_path / "pvc" / "demo")

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            assert (await coordinator.commits.scan_storage()).first_round == 1
            await coordinator.ask(names.PATH_COMMIT_DURABLE, coordinator.durable(5))

    asyncio.run(scene())
    (storage.root / folder_name(identities.state(8, 6))).mkdir()
    settings = checkpoint_pod.settings_of(tmp_path, checkpoint_path=str(tmp_path / "pvc"))
    successor = CommitService(
        settings, checkpoint_pod.Told(), HttpPeerClient(settings), storage=_stored(settings)
    )
    assert asyncio.run(successor.scan_storage()).first_round == 7
    assert successor.durable_step == 5
    assert storage.folders()[-1] == CheckpointFolder(identities.state(8, 6), str(storage.root))


def test_a_stray_file_holds_up_no_job(tmp_path):
    """Named like a checkpoint: the first round is numbered, and a restart that memory serves does
    not fail of it."""
    root = tmp_path / "pvc" / "demo"
    root.mkdir(parents=True)
    (root / folder_name(identities.state(30, 4))).write_text("somebody's own")

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            assert (await coordinator.commits.scan_storage()).first_round == 1
            assert (await coordinator.resolve(0, HELD, world=1)).state.step == HELD.state.step
            assert (await coordinator.ask(names.PATH_COMMIT_DURABLE, coordinator.durable(21))).done
            assert coordinator.story.lines[-1][0] == names.EVENT_DURABLE


def test_what_a_job_went_back_behind_is_not_durable_after_a_restart(tmp_path):
    """The newest checkpoint was damaged. Also a coordinator that begins anew in that round says of
    no later step that it is durable, until one is."""
    (tmp_path / names.RUN_DIR).mkdir()

    async def scene(*, resolves: bool, durable: bool) -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            await coordinator.commits.scan_storage()
            if resolves:
                assert (await coordinator.resolve(0, round_=2, world=1)).state.step == 50
            asked = WaitRequest(identities.state(60, 2), "durable", 0.0)
            assert (await coordinator.ask(names.PATH_COMMIT_WAIT, asked)).done is durable

    async def commits(*steps: int, round_: int) -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            await coordinator.commits.scan_storage()
            for step in steps:
                report = coordinator.durable(step, round_=round_)
                assert (await coordinator.ask(names.PATH_COMMIT_DURABLE, report)).done

    asyncio.run(commits(50, 100, round_=1))
    damaged = (
        tmp_path / "pvc" / "demo" / folder_name(identities.state(100)) / "rank-00000.safetensors"
    )
    damaged.write_bytes(b"stat")
    asyncio.run(scene(resolves=True, durable=False))
    asyncio.run(scene(resolves=False, durable=False))
    asyncio.run(commits(60, round_=2))
    asyncio.run(scene(resolves=False, durable=True))


def test_nothing_is_durable_before_anything_is(tmp_path):
    """Nor is a step 0."""

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            asked = WaitRequest(identities.state(0), "durable", 0.0)
            assert not (await coordinator.ask(names.PATH_COMMIT_WAIT, asked)).done
            await coordinator.ask(names.PATH_COMMIT_DURABLE, coordinator.durable(0))
            assert (await coordinator.ask(names.PATH_COMMIT_WAIT, asked)).done

    asyncio.run(scene())


def test_unreadable_storage_is_a_warning_and_memory_goes_on(tmp_path):
    """The first generation and a resolve without a storage: told, not failed."""
    (tmp_path / "pvc").mkdir()
    (tmp_path / "pvc" / "demo").symlink_to(tmp_path / "pvc" / "demo")

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            assert (await coordinator.commits.scan_storage()).first_round == 1
            assert (await coordinator.resolve(0, HELD, world=1)).source == "memory"

    asyncio.run(scene())


@pytest.mark.parametrize(("second", "done"), [("other", True), ("first", False)])
def test_a_replicated_step_in_two_pods_has_its_replica(tmp_path, second, done):
    """Two ranks in one pod are lost together; in two pods each has what the other would lose."""

    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            for rank, pod in enumerate(("first", second)):
                sealed = SlotSealed(
                    local_rank=0,
                    rank=rank,
                    world_size=2,
                    round=identities.round_id(1),
                    state=identities.state(10),
                    slot=0,
                    snapshot_bytes=99,
                    replicated=True,
                    pod=pod,
                )
                await coordinator.ask(names.PATH_COMMIT_SEALED, sealed)
            waited = WaitRequest(identities.state(10), "replica", 0.0)
            assert (await coordinator.ask(names.PATH_COMMIT_WAIT, waited)).done is done

    asyncio.run(scene())


@pytest.mark.parametrize("replicated", [False, True])
def test_nobody_waits_for_a_replica_where_no_other_pod_trains(tmp_path, replicated):
    """Whether the step is sealed already or not: the answer says what to wait for in its place."""

    async def scene() -> None:
        async with Coordinator(tmp_path) as coordinator:
            wanted = WaitRequest(identities.state(10), "replica", 600.0)
            waiting = asyncio.create_task(coordinator.ask(names.PATH_COMMIT_WAIT, wanted, Ack))
            for rank in range(2):
                sealed = SlotSealed(
                    local_rank=rank,
                    rank=rank,
                    world_size=2,
                    round=identities.round_id(1),
                    state=identities.state(10),
                    slot=0,
                    snapshot_bytes=99,
                    replicated=replicated,
                    pod="only",
                    checksum=1,
                )
                await coordinator.ask(names.PATH_COMMIT_SEALED, sealed)
            later = coordinator.ask(names.PATH_COMMIT_WAIT, wanted)
            for reply in await asyncio.wait_for(asyncio.gather(waiting, later), 60):
                assert not reply.done
                assert "no other pod" in reply.reason

    asyncio.run(scene())


@pytest.mark.parametrize("overwritten", [False, True])
def test_a_step_of_which_a_slot_was_overwritten_is_not_copied(tmp_path, overwritten):
    """Its rank would be without a copy, and the step would count as safe from the loss of a pod."""

    async def scene():
        async with Coordinator(tmp_path) as coordinator:
            for rank in range(4):
                known = None if overwritten and rank == 3 else 99
                sealed = SlotSealed(
                    rank % 2, rank, 4, identities.round_id(1), identities.state(10), 0, 99,
                    replicated=False, pieces=True, pod=f"demo-worker-{rank // 2}",
                    checksum=known,
                )  # fmt: skip
                await coordinator.ask(names.PATH_COMMIT_SEALED, sealed)
            asked = ReplicateRequest("demo-worker-1", 0, 0.0)
            return await coordinator.ask(names.PATH_REPLICATE, asked, ReplicateOrder)

    held = [slot.rank for slot in asyncio.run(scene()).slots]
    assert held == ([] if overwritten else [0, 1])


@pytest.mark.parametrize("replicated", [True, False])
def test_seals_are_counted_by_steps_with_the_slowest_rank(tmp_path, replicated):
    """Two ranks of one step are one save; one that is not replicated counts when all sealed it.
    A step is named for persisting once all have it, the next one not before the pace allows."""

    async def scene() -> None:
        changes = {"checkpoint_path": str(tmp_path / "pvc"), "checkpoint_persist_seconds": 3600.0}
        async with Coordinator(tmp_path, **changes) as coordinator:
            commits, named = coordinator.commits, []
            for step in (10, 20):
                for rank, seconds in ((0, 0.25), (1, 0.5)):
                    sealed = SlotSealed(
                        local_rank=0,
                        rank=rank,
                        world_size=2,
                        round=identities.round_id(1),
                        state=identities.state(step),
                        slot=0,
                        snapshot_bytes=99,
                        replicated=replicated,
                        copy_seconds=seconds,
                    )
                    await coordinator.ask(names.PATH_COMMIT_SEALED, sealed)
                    poll = PersistOrderRequest(0, 0.0)
                    named.append(await coordinator.named(poll))
                    expected = step if replicated or rank else (step - 10 or None)
                    assert commits.sealed_step == expected
            seals = commits.sealed_steps
            assert (seals.saves, seals.seconds, seals.snapshot_bytes) == (2, 1.0, 99)
            assert seals.replicated is replicated
            assert [item.state and item.state.step for item in named] == [None, 10, 10, 10]
            await coordinator.ask(
                names.PATH_COMMIT_GIVEN_UP,
                PersistAborted(
                    pod="p",
                    rank=1,
                    reason="the disk is full",
                    state=identities.state(10),
                    pause_seconds=5.0,
                ),
            )
            poll = PersistOrderRequest(1, 0.0)
            assert (
                await coordinator.ask(names.PATH_COMMIT_NAMED, poll, PersistOrder)
            ).state is None
            # Who only asks is told, and does not hurry; who waits does.
            asked = WaitRequest(identities.state(20), "durable", 0.0)
            assert not (await coordinator.ask(names.PATH_COMMIT_WAIT, asked)).done
            assert (
                await coordinator.ask(names.PATH_COMMIT_NAMED, poll, PersistOrder)
            ).state is None
            waiting = asyncio.create_task(
                coordinator.ask(
                    names.PATH_COMMIT_WAIT, WaitRequest(identities.state(20), "durable", 60.0)
                )
            )
            poll = PersistOrderRequest(1, 30.0)
            assert (
                await coordinator.ask(names.PATH_COMMIT_NAMED, poll, PersistOrder)
            ).state.step == 20
            # A newer slot has replaced it: who waits does not wait for the pace with the next one.
            replaced = PersistAborted(
                pod="p", rank=1, reason="newer steps replaced it", state=identities.state(20)
            )
            await coordinator.ask(names.PATH_COMMIT_GIVEN_UP, replaced)
            for rank in (0, 1):
                newer = dataclasses.replace(sealed, rank=rank, state=identities.state(30))
                await coordinator.ask(names.PATH_COMMIT_SEALED, newer)
            poll = PersistOrderRequest(2, 30.0)
            assert (
                await coordinator.ask(names.PATH_COMMIT_NAMED, poll, PersistOrder)
            ).state.step == 30
            waiting.cancel()

    asyncio.run(scene())


def test_a_restarted_coordinator_names_under_numbers_that_nobody_knows(tmp_path):
    """A sidecar that knows the number of the life before must hear of the first step of this."""

    async def scene() -> int:
        async with Coordinator(tmp_path, checkpoint_persist_seconds=0.0) as coordinator:
            sealed = SlotSealed(
                local_rank=0,
                rank=0,
                world_size=1,
                round=identities.round_id(1),
                state=identities.state(10),
                slot=0,
                snapshot_bytes=99,
                replicated=True,
            )
            await coordinator.ask(names.PATH_COMMIT_SEALED, sealed)
            named = await coordinator.ask(
                names.PATH_COMMIT_NAMED, PersistOrderRequest(0, 0.0), PersistOrder
            )
            assert named.state.step == 10
            return named.number

    assert asyncio.run(scene()) != asyncio.run(scene())


def _saved(rank: int, step: int, round_: int) -> SlotSealed:
    """What a sidecar of a DDP job of two ranks tells of a save."""
    pod = f"demo-worker-{rank}"
    return SlotSealed(
        local_rank=0,
        rank=rank,
        world_size=2,
        round=identities.round_id(round_),
        state=identities.state(step, round_),
        slot=step % 2,
        snapshot_bytes=1,
        replicated=True,
        pod=pod,
        checksum=1,
    )


def test_ranks_that_have_not_saved_a_step_are_named(tmp_path):
    """Rank 0 alone saves, as with torch.save: who waits for storage hears what is missing."""

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            for rank, step in ((0, 1), (1, 1), (0, 2)):
                await coordinator.ask(names.PATH_COMMIT_SEALED, _saved(rank, step, 1))
            for step, is_lacking in ((1, False), (2, True)):
                wanted = WaitRequest(identities.state(step), "durable", 0.0)
                reply = await coordinator.ask(names.PATH_COMMIT_WAIT, wanted)
                assert ("ranks [1] have not saved it" in reply.reason) is is_lacking

    asyncio.run(scene())


def test_what_to_do_is_told_behind_hundreds_of_ranks(tmp_path):
    """An Event is cut at a thousand characters; 511 ranks take more."""

    async def scene() -> None:
        path = str(tmp_path / "pvc")
        async with Coordinator(
            tmp_path, resolve=BarrierTimeout(0.1, 0.05), checkpoint_path=path
        ) as coordinator:
            sealed = dataclasses.replace(_saved(0, 1, 1), world_size=512)
            await coordinator.ask(names.PATH_COMMIT_SEALED, sealed)
            reply = await coordinator.ask(
                names.PATH_COMMIT_WAIT, WaitRequest(identities.state(1), "durable", 0.0)
            )
            assert reply.reason.endswith("ranks [1 to 511] have not saved it: every rank has to")
            refused = await coordinator.resolve(3, HELD, world=512)
            assert refused["message"].startswith("ranks [0 to 2, 4 to 511] of round 1 did not ask")
            ((_, message, _),) = coordinator.story.lines
            assert message.endswith("the others wait for 0.1 s in all")
            assert len(message) < MAX_MESSAGE_LENGTH

    asyncio.run(scene())


def test_ranks_with_other_parameters_are_told_once_a_round(tmp_path):
    """Rank 0 alone keeps an average of the weights: no step ever comes to storage, and a Warning,
    and the answer to who waits, say why and what to do."""

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            for step in (1, 2):
                first = dataclasses.replace(coordinator.durable(step, world=2), replicated_crc=1)
                second = dataclasses.replace(first, rank=1, replicated_crc=2)
                assert (await coordinator.ask(names.PATH_COMMIT_DURABLE, first)).done
                reply = await coordinator.ask(names.PATH_COMMIT_DURABLE, second)
                assert not reply.done
            ((reason, message, warning),) = coordinator.story.lines
            assert (reason, warning) == (names.EVENT_CHECKPOINT_WARNING, True)
            assert message.startswith("step 1 does not come to storage: parameters or optimizer")
            assert "rank 1 are not those of rank 0" in message
            for step, is_hopeless in ((2, True), (3, False)):  # the next ones may be alike again
                waited = WaitRequest(identities.state(step), "durable", 0.0)
                reply = await coordinator.ask(names.PATH_COMMIT_WAIT, waited)
                assert (message in reply.reason, reply.permanent) == (True, is_hopeless)
            assert coordinator.commits.durable_step is None

    asyncio.run(scene())


def test_a_rank_that_never_saves_is_told_once(tmp_path):
    """After some saves and seconds of another: a Warning says why nothing comes to storage."""

    async def scene() -> None:
        async with Coordinator(tmp_path, checkpoint_path=str(tmp_path / "pvc")) as coordinator:
            for step in range(1, 5):
                await coordinator.ask(names.PATH_COMMIT_SEALED, _saved(0, step, 1))
            assert coordinator.story.lines == []
            coordinator.commits._saving_ranks._began -= 10.0
            for step in range(5, 8):
                await coordinator.ask(names.PATH_COMMIT_SEALED, _saved(0, step, 1))
            ((reason, message, warning),) = coordinator.story.lines
            assert (reason, warning) == (names.EVENT_CHECKPOINT_WARNING, True)
            assert message.startswith("rank 0 saves, and of 2 ranks [1] never")
            assert "on every rank" in message

    asyncio.run(scene())

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a restore needs of other pods' memory is there until every rank has it, and is verified."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import fcntl
import functools
import pathlib
import random
import shutil
import threading
from collections.abc import Iterator, Sequence

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    RequestedBoxes,
    RestoreReply,
    RestoreRequest,
    RestoreStepReply,
    RestoreStepRequest,
    SlotSealed,
    WaitRequest,
)
from rover_kf.api.replication import SealAck
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.arena import Arena, SlotWrite
from rover_kf.coordinator.replication.locations import SlotLocationStore
from rover_kf.sidecar.http.peer_client import HttpPeerClient
from rover_kf.sidecar.slots.slots import PodSlots
from tests.support.pods import checkpoint_pod, checkpoint_world
from tests.support.pods.bare_trainer import Trainer
from tests.support.states import identities
from tests.support.states.synthetic_states import Form
from tests.support.waiting import eventually

ROWS = 12 * 1020


def _form(size: int) -> Form:
    return Form("sharded", world_size=size, all_rows=ROWS)


def _saved(pods: Sequence[checkpoint_pod.Pod], step: int = 5) -> list[Trainer]:
    """A rank in each pod, all of which have sealed their pieces."""
    trainers = [Trainer(pod, rank, len(pods)) for rank, pod in enumerate(pods)]
    for rank, trainer in enumerate(trainers):
        content = _form(len(pods)).bytes_of(step, trainer.round, rank)
        trainer.save(step, content, replicated=False, pieces=True)
    return trainers


def _at_once(
    trainers: Sequence[Trainer], round_: int, wanted: Sequence[tuple[RequestedBoxes, ...]]
) -> list[RestoreReply]:
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        asked = [
            ranks.submit(trainer.restore, round_, wish)
            for trainer, wish in zip(trainers, wanted, strict=True)
        ]
        return [one.result() for one in asked]


def _world(pods: Sequence[checkpoint_pod.Pod], size: int, round_: int) -> None:
    """The first pods restore their pieces of step 5 in a world of that size, every byte checked."""
    form = _form(size)
    trainers = [Trainer(pod, rank, size) for rank, pod in enumerate(pods[:size])]
    replies = _at_once(trainers, round_, [form.wanted(rank) for rank in range(size)])
    for rank, reply in enumerate(replies):
        assert (reply.step, reply.source) == (5, "peer")
        data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
        assert form.check(data, 5, rank) == 1


def _is_kept(trainer: Trainer, step: int, seconds: float) -> bool:
    asked = WaitRequest(identities.state(step), "replica", seconds)
    return trainer.link.request(names.PATH_WAIT, asked, Ack, timeout=60).done


def _held(pod: checkpoint_pod.Pod) -> list[tuple[int, int]]:
    """Rank and step in a pod's slots."""
    return sorted((seal.rank, seal.state.step) for seal in PodSlots(pod.settings).arena(0).sealed())


def test_the_slot_of_a_rank_that_moved_on_stays(tmp_path):
    """Each rank has a state of its own; a pod is lost and another one joins, so that a survivor is
    the lost pod's rank now. Its slot is all that there is of the rank that it was."""
    with checkpoint_pod.pods(tmp_path, 4) as pods:
        contents = [random.Random(rank).randbytes(64 << 10) for rank in range(3)]
        trainers = [Trainer(pods[rank], rank, 3) for rank in range(3)]
        for trainer, content in zip(trainers, contents, strict=True):
            trainer.save(5, content, replicated=False)
        assert _is_kept(trainers[0], 5, 50)
        pods[1].kill()
        shutil.rmtree(pods[1].settings.volume_path)
        moved = [Trainer(pods[index], rank, 3) for rank, index in enumerate((0, 2, 3))]
        for reply, content in zip(_at_once(moved, 2, [()] * 3), contents, strict=True):
            assert pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes] == content
        assert _held(pods[2]) == [(1, 5), (2, 5)]
        pods[1].start()  # the lost pod's successor: all are again who they were
        for reply, content in zip(_at_once(trainers, 3, [()] * 3), contents, strict=True):
            assert pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes] == content


@pytest.mark.parametrize("arena", [64 << 20, int(len(_form(4).bytes_of(5, 1, 0)) * 2.85)])
def test_pods_that_left_give_their_pieces(tmp_path, arena):
    """Also where the arena has no room for replicas, and once more where no save came between."""
    with checkpoint_pod.pods(tmp_path, 4, arena_bytes=arena) as pods:
        trainers = _saved(pods)
        if arena == 64 << 20:
            assert _is_kept(trainers[0], 5, 50)
        else:
            warned = functools.partial(pods[0].told, names.EVENT_CHECKPOINT_WARNING)
            eventually(warned, what="it is told that a pod keeps no replica")
        _world(pods, 3, 2)
        if arena == 64 << 20:
            _world(pods, 2, 3)


def test_a_shrink_that_broke_off_is_made_again(tmp_path):
    """A process dies after the step was chosen and before it has its pieces."""
    with checkpoint_pod.pods(tmp_path, 4) as pods:
        assert _is_kept(_saved(pods)[0], 5, 50)
        two = _form(2)

        async def chosen() -> RestoreStepReply:
            peers = HttpPeerClient(pods[1].settings)
            await peers.start()
            try:
                holdings, _ = PodSlots(pods[1].settings).holdings(0)
                asked = RestoreStepRequest(
                    round=identities.round_id(2), rank=1, world_size=2, slots=holdings
                )
                return await peers.call_coordinator(
                    names.PATH_COMMIT_RESOLVE, asked, RestoreStepReply
                )
            finally:
                await peers.stop()

        with concurrent.futures.ThreadPoolExecutor() as ranks:
            first = ranks.submit(Trainer(pods[0], 0, 2).restore, 2, two.wanted(0))
            assert ranks.submit(asyncio.run, chosen()).result().state.step == 5
            assert first.result().step == 5
        _world(pods, 2, 3)


def test_a_new_world_does_not_wait_for_what_the_old_one_persists(tmp_path):
    """Storage takes a quarter of an hour for a step; a newer one is saved meanwhile, and a pod
    leaves: who goes on puts its new pieces together in the slot that is still being written."""
    rate = len(_form(4).bytes_of(4, 1, 0)) // 900
    given = {"storage": tmp_path / "pvc", "checkpoint_bandwidth": rate}
    with checkpoint_pod.pods(tmp_path, 4, **given) as pods:
        _saved(pods, 4)
        begun = lambda: {path.name for path in (tmp_path / "pvc").rglob("*.part")}  # noqa: E731
        eventually(lambda: len(begun()) == len(pods), what="every pod writes its file")
        _saved(pods, 5)
        kept = SlotLocationStore(pods[0].settings.volume_path, pods[0].settings.pod_uid)
        newest = lambda: [holding.state.step for holding in (kept.read() or [()])[-1]]  # noqa: E731
        eventually(lambda: newest() == [5] * 4, what="the coordinator knows of the newer step")
        _world(pods, 3, 2)


def test_a_new_world_does_not_wait_for_copies_of_the_old_one(tmp_path):
    """A copy of an older slot takes longer than a restore waits for that slot."""
    two, one = (Form("sharded", world_size=size, all_rows=4 * ROWS) for size in (2, 1))
    given = {"arena_bytes": 256 << 20, "checkpoint_replica_bandwidth": 128 << 10}
    with checkpoint_pod.pods(tmp_path, 2, **given) as pods:
        trainers = [Trainer(pod, rank, 2) for rank, pod in enumerate(pods)]
        copies = PodSlots(pods[1].settings).replicas
        for step in (4, 5):
            for rank, trainer in enumerate(trainers):
                trainer.save(step, two.bytes_of(step, 1, rank), replicated=False, pieces=True)
            eventually(lambda: copies() == ("replica-0",), what="the older step is being copied")
        kept = SlotLocationStore(pods[0].settings.volume_path, pods[0].settings.pod_uid)
        newest = lambda: [holding.state.step for holding in (kept.read() or [()])[-1]]  # noqa: E731
        eventually(lambda: newest() == [5, 5], what="the coordinator knows of the newer step")
        reply = Trainer(pods[0], 0, 1).restore(2, one.wanted(0))
        assert (reply.step, reply.source) == (5, "peer")


def test_a_copy_counts_in_its_own_round_only(tmp_path):
    """The pod that kept it may be another one now, which keeps nothing yet."""
    with checkpoint_pod.pods(tmp_path, 2) as pods:
        trainers = _saved(pods)
        assert _is_kept(trainers[0], 5, 50)
        pods[1].kill()
        shutil.rmtree(pods[1].settings.volume_path)
        pods[1].start()
        form = _form(2)
        replies = _at_once(trainers, 2, [form.wanted(rank) for rank in range(2)])
        assert [(reply.step, reply.source) for reply in replies] == [(5, "memory"), (5, "peer")]
        assert not _is_kept(trainers[0], 5, 0)
        for rank, trainer in enumerate(trainers):
            trainer.save(6, form.bytes_of(6, 2, rank), replicated=False, pieces=True)
        assert _is_kept(trainers[0], 6, 50)


def test_a_copy_stays_where_the_next_one_cannot_be_had(tmp_path):
    """A pod was lost when it had sealed its slot, and before another one had begun to copy it."""
    with checkpoint_pod.pods(tmp_path, 2) as pods:
        trainers, settings = _saved(pods), pods[1].settings
        assert _is_kept(trainers[0], 5, 50)
        pods[1].kill()
        content = _form(2).bytes_of(6, 1, 0)
        told = SlotSealed(
            local_rank=0, rank=1, world_size=2, round=identities.round_id(1),
            state=identities.state(6), slot=1, snapshot_bytes=len(content), replicated=False,
            pieces=True, checksum=7, pod=settings.pod, address=settings.endpoint,
        )  # fmt: skip

        async def tell() -> None:
            peers = HttpPeerClient(pods[0].settings)
            await peers.start()
            try:
                await peers.call_coordinator(names.PATH_COMMIT_SEALED, told, SealAck)
            finally:
                await peers.stop()

        asyncio.run(tell())
        trainers[0].save(6, content, replicated=False, pieces=True)
        warned = functools.partial(pods[0].told, names.EVENT_CHECKPOINT_WARNING)
        eventually(warned, what="it is told that no copy can be had")
        (kept,) = PodSlots(pods[0].settings).arena("replica-1").sealed()
        assert kept.state.step == 5


def test_a_pod_that_is_left_alone_keeps_no_others_slots(tmp_path):
    """The memory of replicas is free after the first save of a world of one."""
    with checkpoint_pod.pods(tmp_path, 2) as pods:
        assert _is_kept(_saved(pods)[0], 5, 50)
        slots = PodSlots(pods[0].settings)
        assert slots.replicas() == ("replica-1",)
        pods[1].kill()
        alone = Trainer(pods[0], 0, 1)
        assert alone.restore(2, _form(1).wanted(0)).step == 5
        alone.save(6, _form(1).bytes_of(6, 2, 0), replicated=False, pieces=True)
        eventually(lambda: not slots.replicas(), what="no replica is kept")
        assert not _is_kept(alone, 6, 0)


def test_copies_are_given_up_where_the_world_shrinks(tmp_path):
    """Slots of three ranks have room in an arena that was made for four with a copy each, but not
    beside that copy: the pod that left gives its pieces."""
    arena = int(len(_form(4).bytes_of(5, 1, 0)) * 3.2)
    with checkpoint_pod.pods(tmp_path, 4, arena_bytes=arena) as pods:
        assert _is_kept(_saved(pods)[0], 5, 50)
        _world(pods, 3, 2)


def test_a_state_that_grows_goes_before_copies(tmp_path):
    """Training goes on without a copy of another pod's slot, and that is told."""
    small, large = _form(4), _form(3)
    arena = int(len(small.bytes_of(5, 1, 0)) * 3.2)
    with checkpoint_pod.pods(tmp_path, 2, arena_bytes=arena) as pods:
        trainers = [Trainer(pod, rank, 2) for rank, pod in enumerate(pods)]
        for step, form in ((5, small), (6, large)):
            for rank, trainer in enumerate(trainers):
                content = form.bytes_of(step, 1, rank)
                trainer.save(step, content, replicated=False, pieces=True)
            assert _is_kept(trainers[0], step, 50 if form is small else 0) == (form is small)
        warned = functools.partial(pods[0].told, names.EVENT_CHECKPOINT_WARNING)
        eventually(warned, what="it is told that a pod keeps no replica")
        assert "checkpoint.arena" in warned()[0]


def test_copies_are_given_up_where_the_next_restore_does_without(tmp_path):
    """The three that are left have room for their larger slots, and none for copies beside them:
    what is on storage is what they go on from."""
    four, three = _form(4), _form(3)
    given = {
        "arena_bytes": int(len(four.bytes_of(5, 1, 0)) * 3.2),
        "storage": tmp_path / "pvc",
        "checkpoint_persist_seconds": 3600.0,
    }
    with checkpoint_pod.pods(tmp_path, 4, **given) as pods:
        trainers = _saved(pods, 4)
        assert trainers[0].wait(4, "durable").done
        _saved(pods, 5)
        assert _is_kept(trainers[0], 5, 50)
        pods[3].kill()
        shutil.rmtree(pods[3].settings.volume_path)
        left = [Trainer(pod, rank, 3) for rank, pod in enumerate(pods[:3])]
        wanted = [three.wanted(rank) for rank in range(3)]
        with concurrent.futures.ThreadPoolExecutor() as ranks:
            asked = [
                ranks.submit(one.restore, 2, wish) for one, wish in zip(left, wanted, strict=True)
            ]
            told = [one.exception() for one in asked]
        # Others may find that a copy is gone.
        assert any("these are given up" in str(error) for error in told)
        assert all(isinstance(error, errors.CheckpointError) for error in told)
        replies = _at_once(left, 3, wanted)
        assert [(reply.step, reply.source) for reply in replies] == [(4, "storage")] * 3


def test_copies_stay_where_nothing_else_is_left(tmp_path):
    """A pod of four is lost, without storage; the slots of the three that are left do not fit. When
    the lost one's place is taken, what it had comes back."""
    four, three = _form(4), _form(3)
    arena = int(len(four.bytes_of(5, 1, 0)) * 3.2)
    with checkpoint_pod.pods(tmp_path, 4, arena_bytes=arena) as pods:
        trainers = _saved(pods)
        assert _is_kept(trainers[0], 5, 50)
        pods[3].kill()
        shutil.rmtree(pods[3].settings.volume_path)
        left = [Trainer(pod, rank, 3) for rank, pod in enumerate(pods[:3])]
        with pytest.raises(errors.ArenaTooSmall):
            _at_once(left, 2, [three.wanted(rank) for rank in range(3)])
        pods[3].start()
        replies = _at_once(trainers, 3, [four.wanted(rank) for rank in range(4)])
        assert [reply.source for reply in replies] == ["memory"] * 3 + ["peer"]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture
def world(tmp_path, runner) -> Iterator[checkpoint_world.World]:
    """A job of one rank."""
    with checkpoint_world.in_memory() as home:
        form = Form("replicated", world_size=1)
        found = checkpoint_world.World(home, tmp_path, form, runner)
        found.begin()
        yield found


@pytest.mark.parametrize("damaged", [1, 2])
def test_whichever_slot_is_offered_first_was_verified(world, damaged):
    """The newest one is damaged, or both are: then nothing is left in memory, and it is told."""
    arena = world.slots[0].arena(0)
    for step in (1, 2):
        world.save(step, 1)
        world.slots[0].checksum(0, arena.sealed()[0])  # as after each seal
    for seal in arena.sealed()[:damaged]:
        with arena.slot_path(seal.slot).open("r+b") as file:
            file.seek(seal.length - 1)
            (last,) = file.read(1)
            file.seek(seal.length - 1)
            file.write(bytes([last ^ 0x40]))
    assert world.restore(2) == ((1, 1) if damaged == 1 else (0, 0))
    assert len(world.warnings()) == damaged


def test_a_slot_is_let_go_of_when_nobody_waits_for_the_restore(world, runner, monkeypatch):
    """The training process was killed while both slots were being read; saves go on afterwards."""
    world.persist(5, 1, order=(0,))
    world.forget()
    arena, fill, waits = world.slots[0].arena(0), Arena.fill, threading.Event()

    def noted(self: Arena, **given: object) -> SlotWrite:
        waits.set()
        return fill(self, **given)

    async def killed() -> None:
        with contextlib.ExitStack() as reading:
            for slot in (0, 1):
                file = reading.enter_context(arena.slot_path(slot).open("rb"))
                fcntl.flock(file, fcntl.LOCK_SH)
            asked = RestoreRequest(local_rank=0, rank=0, world_size=1, round=identities.round_id(2))
            restoring = asyncio.create_task(world._restorers[0].restore(asked))
            await asyncio.to_thread(waits.wait)
            restoring.cancel()
            with pytest.raises(asyncio.CancelledError):
                await restoring
        await asyncio.get_running_loop().shutdown_default_executor()  # the thread has a slot now

    monkeypatch.setattr(Arena, "fill", noted)
    runner.run(killed())
    for step in (6, 7):
        with arena.fill(timeout_seconds=0.0) as filling:
            filling.seal(
                state=identities.state(step, 2), length=1, rank=0, world_size=1, replicated=True
            )
    assert [seal.state.step for seal in arena.sealed()] == [7, 6]

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots that hold a part of what every rank had: a script that came to shard its state."""

from __future__ import annotations

import concurrent.futures
import pathlib

import pytest

from rover_kf.api import names
from rover_kf.api.checkpoints import RequestedBoxes, RestoreReply
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.tensor_layout import LAYOUT_KEY, TensorLayout, TensorShard
from tests.support.pods import checkpoint_pod
from tests.support.pods.bare_trainer import Trainer
from tests.support.waiting import eventually

CONTENT = bytes(range(60))


def _boxes(world: int) -> list[RequestedBoxes]:
    """Of so many ranks."""
    size = 60 // world
    return [RequestedBoxes((60,), (rank * size,), (size,), ("w",)) for rank in range(world)]


def _parts(world: int) -> list[bytes]:
    return [CONTENT[box.offsets[0] :][: box.sizes[0]] for box in _boxes(world)]


def _snapshot(part: bytes, begin: int = 0, *, cut: bool = False) -> bytes:
    """What a rank has: all, as in a DDP job or where a world of one cuts, or what begins
    somewhere."""
    pieces = {"w": TensorShard((60,), (begin,))} if cut or len(part) < 60 else {}
    metadata = {LAYOUT_KEY: TensorLayout(shards=pieces).to_text()}
    layout = snapshot.plan([snapshot.Entry("w", "U8", (len(part),), 1)], metadata)
    return snapshot.header(layout, metadata) + part


def _held(reply: RestoreReply) -> bytes:
    data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
    place = snapshot.read(data).tensors["w"]
    return data[place.begin : place.end]


def _restore(
    trainers: list[Trainer], round_: int, wanted: list[RequestedBoxes]
) -> list[RestoreReply]:
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        asked = [
            ranks.submit(trainer.restore, round_, (wish,))
            for trainer, wish in zip(trainers, wanted, strict=True)
        ]
        return [one.result() for one in asked]


@pytest.mark.parametrize("stored", [False, True])
def test_a_rank_that_holds_a_part_is_not_taken_for_one_that_holds_all(tmp_path, stored):
    """Saved by DDP, restored in halves, and a pod is lost before the next save."""
    storage = tmp_path / "pvc" if stored else None
    with checkpoint_pod.pods(tmp_path, 2, storage=storage, checkpoint_persist_seconds=0.0) as both:
        trainers = [Trainer(pod, rank, 2) for rank, pod in enumerate(both)]
        for trainer in trainers:
            trainer.save(7, _snapshot(CONTENT))
        if stored:
            assert trainers[0].wait(7, "durable").done
            for trainer in trainers:  # new machines
                for seal in trainer.arena.sealed():
                    trainer.arena.discard(seal)
        replies = _restore(trainers, 2, _boxes(2))
        assert [_held(reply) for reply in replies] == _parts(2)
        newest = [trainer.arena.sealed()[0] for trainer in trainers]
        assert [(seal.replicated, seal.pieces) for seal in newest] == [(False, True)] * 2
        again = _restore(trainers, 3, _boxes(2))  # at the same size each has its own
        assert [(reply.source, _held(reply)) for reply in again] == [
            ("memory", part) for part in _parts(2)
        ]
        for seal in trainers[1].arena.sealed():  # lost with its pod
            trainers[1].arena.discard(seal)
        survivor = Trainer(both[0], 0, 1)
        reply = survivor.restore(4, tuple(_boxes(1)))
        assert (reply.step, reply.source) == (7, "storage" if stored else "memory")
        assert _held(reply) == CONTENT


def test_a_world_of_one_gives_each_rank_its_part(tmp_path):
    """It had cut its tensors into one part each: its own pod has no more of them than others."""
    with checkpoint_pod.pods(tmp_path, 3) as pods:
        alone = Trainer(pods[0])
        alone.save(7, _snapshot(CONTENT, cut=True), replicated=False, pieces=True)
        three = [Trainer(pod, rank, 3) for rank, pod in enumerate(pods)]
        assert [_held(reply) for reply in _restore(three, 2, _boxes(3))] == _parts(3)


def test_what_goes_to_storage_is_what_this_world_goes_on_from(tmp_path):
    """From two ranks to three and back, nothing saved meanwhile: slots hold both worlds' parts."""
    storage = tmp_path / "pvc"
    with checkpoint_pod.pods(
        tmp_path, 3, storage=storage, checkpoint_persist_seconds=3600.0
    ) as pods:
        two, three = [
            [Trainer(pod, rank, world) for rank, pod in enumerate(pods[:world])] for world in (2, 3)
        ]
        for trainer, part, box in zip(two, _parts(2), _boxes(2), strict=True):
            trainer.save(7, _snapshot(part, box.offsets[0]), replicated=False, pieces=True)
        assert [_held(reply) for reply in _restore(three, 2, _boxes(3))] == _parts(3)
        back = _restore(two, 3, _boxes(2))
        assert [(reply.source, _held(reply)) for reply in back] == [
            ("memory", part) for part in _parts(2)
        ]
        for trainer in two:
            assert trainer.flush().done
        for trainer in three:  # new machines
            for seal in trainer.arena.sealed():
                trainer.arena.discard(seal)
        (reply,) = _restore([Trainer(pods[0])], 4, _boxes(1))
        assert (reply.step, reply.source) == (7, "storage")
        assert _held(reply) == CONTENT


def test_a_coordinator_that_began_anew_finds_the_pieces_of_a_pod_that_left(tmp_path):
    """From three ranks to two, and its container was started again since the last save; memory has
    no room for copies of other pods' slots."""
    with checkpoint_pod.pods(tmp_path, 3, arena_bytes=8192) as pods:
        three, two = [
            [Trainer(pod, rank, world) for rank, pod in enumerate(pods[:world])] for world in (3, 2)
        ]
        for trainer, part, box in zip(three, _parts(3), _boxes(3), strict=True):
            trainer.save(7, _snapshot(part, box.offsets[0]), replicated=False, pieces=True)
        refused = lambda: pods[0].told(names.EVENT_CHECKPOINT_WARNING)  # noqa: E731 - of one line
        eventually(refused, what="the coordinator knows of all slots, and orders copies")
        pods[0].kill()
        pods[0].start()
        assert [_held(reply) for reply in _restore(two, 2, _boxes(2))] == _parts(2)

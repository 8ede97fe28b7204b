# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that should hold the same are compared: sums of a slot, and what the coordinator makes of
them."""

from __future__ import annotations

import asyncio
import functools
import pathlib

import crc32c
import pytest
from aiohttp.test_utils import TestClient, TestServer

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.checkpoints import SlotSealed
from rover_kf.api.replication import DigestAck, ReplicaDigest, TensorChecksum
from rover_kf.checkpoint.arena import arena_allocation
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.arena.slot_record import Seal
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.snapshot import Entry
from rover_kf.checkpoint.format.tensor_layout import LAYOUT_KEY, TensorLayout
from rover_kf.coordinator.replica_comparison import ReplicaComparison
from rover_kf.sidecar.consistency import digest_worker
from rover_kf.sidecar.http.app import make_application
from tests.support.pods import checkpoint_pod
from tests.support.states import identities
from tests.support.states.synthetic_states import Form
from tests.support.waiting import eventually

# -- sums of a slot ------------------------------------------------------------------------------


class Interrupted(Arena):
    """A trainer saves twice more when a reader has come to its third pin."""

    pins, content = 0, b""

    def pin(self, seal):
        self.pins += 1
        if self.pins == 3:
            for step in (2, 3):
                _save(Arena(self.directory), step, self.content)
        return super().pin(seal)


def _save(arena: Arena, step: int, content: bytes) -> Seal:
    with arena.fill(timeout_seconds=0.0) as filling:
        with arena.slot_path(filling.slot).open("r+b") as slot:
            slot.write(content)
        return filling.seal(
            state=identities.state(step), length=len(content), rank=0, world_size=2, replicated=True
        )


def _arena(root: pathlib.Path, content: bytes, kind: type[Arena] = Arena) -> Arena:
    arena_allocation.allocate(root, 0, len(content), max_bytes=1 << 30)
    return kind(root / "0")


def test_what_all_ranks_hold_alike_is_summed(tmp_path):
    """Type, shape and bytes of each such tensor, however it lies across reads; not a rank's own."""
    form = Form("replicated", all_rows=40_000)
    found = []
    for rank in range(2):
        content = form.bytes_of(1, 1, rank)
        arena = _arena(tmp_path / str(rank), content)
        found.append(digest_worker.digest_slot(arena, _save(arena, 1, content)))
        tensors = form.tensors(1, 1, rank)
    assert len(tensors["large"]) > 2 * digest_worker.PINNED_BYTES
    facts = {"large": "F64 (40000, 128)", "small": "F32 (10,)"}
    assert found[0] == found[1]
    assert {item.name: item.checksum for item in found[0]} == {
        name: crc32c.crc32c(text.encode() + tensors[name]) for name, text in facts.items()
    }


def test_a_save_that_wants_the_slot_has_it(tmp_path):
    """The sums are given up between two reads; the save does not wait for them."""
    content = Form("replicated", all_rows=40_000).bytes_of(1, 1, 0)
    arena = _arena(tmp_path, content, Interrupted)
    arena.content = content
    with pytest.raises(errors.CorruptSnapshot, match="step 1 of round 1 is no longer in slot"):
        digest_worker.digest_slot(arena, _save(Arena(arena.directory), 1, content))
    assert [seal.state.step for seal in arena.sealed()] == [3, 2]


def test_states_that_need_not_be_alike_are_not_compared(tmp_path):
    """Pieces, states of each rank's own, and where any rank's will do though they differ."""
    for kind in ("sharded", "own"):
        form = Form(kind, all_rows=10)
        names_ = [
            p.entry.name
            for p in digest_worker.comparable_tensors(snapshot.read(form.bytes_of(1, 1, 0)))
        ]
        assert names_ == (["small"] if kind == "sharded" else [])
    for alike in (True, False):
        metadata = {LAYOUT_KEY: TensorLayout(frozenset({"own"}), bit_equal=alike).to_text()}
        layout = snapshot.plan([Entry("own", "U8", (4,), 1), Entry("w", "U8", (4,), 1)], metadata)
        content = snapshot.header(layout, metadata) + bytes(8)
        arena = _arena(tmp_path / str(alike), content)
        found = digest_worker.digest_slot(arena, _save(arena, 1, content))
        assert [item.name for item in found] == (["w"] if alike else [])


# -- the coordinator -----------------------------------------------------------------------------


PATIENCE_SECONDS = 60.0
"""By the coordinator's clock, which a test moves on."""


class Coordinator:
    """Verdicts behind their route."""

    def __init__(self, every: int = 3) -> None:
        self.story = checkpoint_pod.Told()
        self.seconds = 0.0
        self.verdicts = ReplicaComparison(
            every, self.story, timeout_seconds=PATIENCE_SECONDS, clock=lambda: self.seconds
        )
        self._client: TestClient | None = None

    async def __aenter__(self):
        self._client = TestClient(TestServer(make_application(self.verdicts.routes(), None)))
        await self._client.start_server()
        return self

    async def __aexit__(self, *_):
        await self._client.close()

    async def ask(self, told: ReplicaDigest) -> DigestAck:
        path = names.PATH_REPLICA_DIGEST
        async with self._client.post(path, data=codec.dumps(told)) as response:
            return codec.loads(DigestAck, await response.read())

    async def check(self, step: int, held: dict[int, int | None]) -> set[int]:
        """All ranks report, each one tensor; who was asked for its listing, and has sent it."""
        told = [_digest(rank, step, value, len(held)) for rank, value in held.items()]
        return await self._list(told, await asyncio.gather(*map(self.ask, told)))

    async def check_without(self, step: int, held: dict[int, int], world: int) -> set[int]:
        """As ``check``, where ranks of that world are silent, and are waited for."""
        told = [_digest(rank, step, value, world) for rank, value in held.items()]
        return await self._list(told, await asyncio.gather(*await self.overdue(told)))

    async def overdue(self, told: list[ReplicaDigest]) -> list[asyncio.Task[DigestAck]]:
        """The questions of these: their time is over, when all are there."""
        asking = [await self.begin(one) for one in told]
        self.pass_time(PATIENCE_SECONDS)
        return asking

    async def begin(self, told: ReplicaDigest) -> asyncio.Task[DigestAck]:
        """A rank's question, when it is there."""
        asking = asyncio.create_task(self.ask(told))
        known = functools.partial(self._has, told)
        await asyncio.to_thread(eventually, known, every=0.01, what="a report")
        return asking

    def pass_time(self, seconds: float) -> None:
        """Those who wait look."""
        self.seconds += seconds
        self.verdicts._poll.notify()

    def _has(self, told: ReplicaDigest) -> bool:
        check = self.verdicts._open.get(told.state)
        return check is not None and told.rank in check.digests

    async def _list(self, told: list[ReplicaDigest], taken: list[DigestAck]) -> set[int]:
        """Those who are asked for their listings send them; who they are."""
        asked = [one for one, answer in zip(told, taken, strict=True) if answer.send_listing]
        for one in asked:
            listing = (TensorChecksum("model.w", one.digest), TensorChecksum("model.b", 0))
            await self.ask(_digest(one.rank, one.state.step, one.digest, one.world_size, listing))
        return {one.rank for one in asked}

    @property
    def messages(self) -> list[str]:
        return [message for _, message, _ in self.story.lines]


def _digest(
    rank: int, step: int, value: int | None, world: int, listing: tuple[TensorChecksum, ...] = ()
) -> ReplicaDigest:
    return ReplicaDigest(
        pod=f"pod-{rank}",
        rank=rank,
        world_size=world,
        tensors=2,
        digest=value,
        listing=listing,
        state=identities.state(step),
    )


def _sealed(
    rank: int, step: int, round_: int = 1, *, saved_in: int = 0, **changes: object
) -> SlotSealed:
    facts = {"world_size": 2, "replicated": True, "slot": 0, "snapshot_bytes": 9}
    saved = identities.state(step, saved_in or round_)
    return SlotSealed(0, rank, round=identities.round_id(round_), state=saved, **(facts | changes))


def test_the_first_save_and_every_kth_after_it_is_checked():
    """The same on all ranks, in whatever order they seal; none where nobody can differ."""
    verdicts = ReplicaComparison(3, checkpoint_pod.Told())
    due = {step: verdicts.is_due(_sealed(0, step)) for step in range(5, 85, 5)}
    assert [step for step, is_due in due.items() if is_due] == [5, 20, 35, 50, 65, 80]
    assert [verdicts.is_due(_sealed(1, step)) for step in (50, 55, 65, 80)] == [1, 0, 1, 1]
    assert [verdicts.is_due(_sealed(1, step, 2)) for step in (5, 10, 15)] == [0, 0, 1]
    restored = {"round_": 2, "saved_in": 1}
    for other in ({"replicated": False}, {"world_size": 1}, restored):
        assert not ReplicaComparison(1, checkpoint_pod.Told()).is_due(_sealed(0, 90, **other))
    assert not ReplicaComparison(0, checkpoint_pod.Told()).is_due(_sealed(0, 90))


def test_a_mismatch_is_told_once_a_set_of_ranks():
    """With rank, pod and tensor; one listing a group is asked for; again in the next round."""

    async def scene() -> None:
        async with Coordinator() as coordinator:
            assert await coordinator.check(10, dict.fromkeys(range(5), 7)) == set()
            assert coordinator.story.lines == []
            for step in (20, 30):
                assert await coordinator.check(step, {0: 7, 1: 7, 2: 7, 3: 8, 4: 7}) == {0, 3}
            assert await coordinator.check(40, {0: 7, 1: 9}) == {0, 1}
            coordinator.verdicts.restart(identities.state(5))
            assert await coordinator.check(20, {0: 7, 1: 7, 2: 7, 3: 8, 4: 7}) == {0, 3}
            known = {(reason, warning) for reason, _, warning in coordinator.story.lines}
            assert known == {(names.EVENT_REPLICA_MISMATCH, True)}
            minority, pair, again = coordinator.messages
            assert "step 20: rank 3 (pod-3) differs from the other 4 in 1 of 2" in minority
            assert "alike: model.w. All were equal at step 10" in minority
            assert "step 40: ranks 0 (pod-0), 1 (pod-1) differ in" in pair
            assert "equal at step 5" in again

    asyncio.run(scene())


def test_ranks_that_are_summed_in_turn_are_waited_for_as_long_as_others_come():
    """A pod's last rank of eight with large slots reports long after the first one."""

    async def scene() -> None:
        async with Coordinator() as coordinator:
            told = [_digest(rank, 10, 8 if rank == 3 else 7, 4) for rank in range(4)]
            asking = []
            for one in told[:3]:
                asking.append(await coordinator.begin(one))
                coordinator.pass_time(0.9 * PATIENCE_SECONDS)
            asking.append(asyncio.create_task(coordinator.ask(told[3])))
            assert await coordinator._list(told, await asyncio.gather(*asking)) == {0, 3}
            assert "rank 3 (pod-3) differs from the other 3" in coordinator.messages[0]

    asyncio.run(scene())


def test_who_is_silent_costs_a_check_and_no_memory():
    """Those who report are compared after the patience; a slot that was overwritten is not waited
    for; steps that stay open are few."""

    async def scene() -> None:
        async with Coordinator() as coordinator:
            assert await coordinator.check_without(10, {0: 7, 1: 7}, world=3) == set()
            assert await coordinator.check_without(20, {0: 7, 1: 7, 2: 8}, world=4) == {0, 2}
            assert "step 20: rank 2 (pod-2) differs from the other 2" in coordinator.messages[0]
            assert "No earlier step was found equal" in coordinator.messages[0]
            wanted = []
            for step in range(30, 60):
                told = [_digest(rank, step, rank, 3) for rank in (0, 1)]
                wanted += await asyncio.gather(*await coordinator.overdue(told))
            print(f"{sum(taken.send_listing for taken in wanted)} listings wanted, none sent")
            assert len(coordinator.verdicts._open) == 4
            late = _digest(0, 31, 0, 3, (TensorChecksum("model.w", 1),))
            assert await coordinator.ask(late) == DigestAck()
            assert len(coordinator.verdicts._open) == 4
        async with Coordinator() as patient:
            assert await patient.check(10, {0: 7, 1: None, 2: 8}) == {0, 2}
            waiting = asyncio.create_task(patient.ask(_digest(0, 20, 7, 2)))
            done, _ = await asyncio.wait({waiting}, timeout=0.1)
            assert not done
            patient.verdicts.restart(None)
            assert await waiting == DigestAck()
            assert len(patient.messages) == 1

    asyncio.run(scene())

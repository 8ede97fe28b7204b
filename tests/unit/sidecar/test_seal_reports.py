# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which seals a coordinator is told of that was away for a while."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import pytest
from aiohttp.test_utils import TestClient, TestServer

from rover_kf.api import codec, names
from rover_kf.api.checkpoints import ArenaRequest, SlotSealed
from rover_kf.checkpoint.arena import arena_allocation
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.sidecar import checkpoint_service
from rover_kf.sidecar.checkpoint_service import CheckpointService
from rover_kf.sidecar.http.app import make_application
from rover_kf.sidecar.slots.rank_assignments import RankAssignment
from rover_kf.sidecar.slots.slots import PodSlots
from tests.support.pods import checkpoint_pod
from tests.support.states import identities
from tests.support.waiting import eventually

SIZE = 64


class Away:
    """A coordinator that answers nothing until it is back, and of seals alone then."""

    def __init__(self) -> None:
        self.back = asyncio.Event()
        self.told: list[int] = []

    async def call_coordinator(self, path, message, reply):
        if path != names.PATH_COMMIT_SEALED:
            await asyncio.Event().wait()
        self.told.append(message.state.step)
        await self.back.wait()
        return reply(send_digest=False)

    @contextlib.asynccontextmanager
    async def get(self, address, path, *, offset):
        raise AssertionError(f"{address}{path} from {offset}")
        yield


def _save(arena: Arena, step: int) -> SlotSealed:
    with arena.fill(timeout_seconds=0.0) as filling:
        seal = filling.seal(
            state=identities.state(step), length=SIZE, rank=0, world_size=1, replicated=True
        )
    return SlotSealed(
        local_rank=0,
        rank=0,
        world_size=1,
        round=identities.round_id(1),
        state=identities.state(step),
        slot=seal.slot,
        snapshot_bytes=SIZE,
        replicated=True,
    )


@pytest.mark.parametrize(
    ("replicated", "world", "told"),
    [(True, 3, (0, 3, 2, True)), (False, 2, (0, 2, 2, True)), (False, 3, (0, 2, 1, False))],
    ids=["alike", "same-world", "another-world"],
)
def test_a_slot_is_told_of_as_the_rank_has_it_now(tmp_path, replicated, world, told):
    """A sidecar was killed in a restore; pieces that were cut for another world are that world's
    until they are put together anew."""
    slots = PodSlots(checkpoint_pod.settings_of(tmp_path))
    slots.allocate(ArenaRequest(0, SIZE))
    with slots.arena(0).fill() as filling:
        filling.seal(
            state=identities.state(5),
            length=SIZE,
            rank=0,
            world_size=2,
            replicated=replicated,
            pieces=True,
        )
    slots.assignments.set(0, RankAssignment(0, world, identities.round_id(2)))
    (found,) = checkpoint_service.newest_sealed(slots)
    assert (found.rank, found.world_size, found.round.number, found.is_restored) == told
    assert found.state == identities.state(5, 1)


def test_a_coordinator_that_is_back_is_told_of_what_is_still_there(tmp_path):
    """Steps whose slots hold newer ones would keep it from the requests of a new world."""

    async def scenario() -> list[int]:
        coordinator = Away()
        settings = checkpoint_pod.settings_of(tmp_path)
        arena_allocation.allocate(tmp_path / names.ARENA_DIR, 0, SIZE, max_bytes=1 << 20)
        arena = Arena(tmp_path / names.ARENA_DIR / "0")
        checkpoints = CheckpointService(settings, coordinator, checkpoint_pod.Told(), None)
        await checkpoints.start()
        server = TestServer(make_application(checkpoints.local_routes(), None))
        async with TestClient(server) as client:
            for step in range(1, 41):
                sealed = codec.dumps(_save(arena, step))
                assert (await client.post(names.PATH_SEALED, data=sealed)).status == 200
                if step == 1:
                    first = functools.partial(eventually, lambda: coordinator.told)
                    await asyncio.to_thread(first)
            coordinator.back.set()
            last = functools.partial(eventually, lambda: coordinator.told[-1] == 40)
            await asyncio.to_thread(last)
        await checkpoints.stop()
        return coordinator.told

    assert asyncio.run(scenario()) == [1, 39, 40]

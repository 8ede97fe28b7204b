# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who follows whom: a new pod's coordinator goes above its predecessor, any other one gives way."""

from __future__ import annotations

import asyncio
import time

import jwt
import pytest
from aiohttp import test_utils, web

from rover_kf.api import codec, names
from rover_kf.api.coordinator_state import CoordinatorState, RendezvousState
from rover_kf.coordinator import failover
from rover_kf.coordinator.failover import CoordinatorFailover
from tests.support.pods import checkpoint_pod


class Office:
    """A coordinator that knows one number."""

    def __init__(self, settings) -> None:
        self.taken: list[tuple[int, bool]] = []
        self.number = 0
        self.succession = CoordinatorFailover(settings, self._capture, self._absorb, lambda _: None)
        self.succession.begin(0)

    def _capture(self) -> CoordinatorState:
        return CoordinatorState(0, 0, RendezvousState(number=self.number, expected=1))

    def _absorb(self, state: CoordinatorState, runs: bool) -> None:  # noqa: FBT001
        self.taken.append((state.rendezvous.number, runs))


@pytest.fixture
def settings(tmp_path):
    found = checkpoint_pod.settings_of(tmp_path)
    (found.volume_path / names.RUN_DIR).mkdir(parents=True, exist_ok=True)
    return found


def test_a_new_pod_goes_above_its_predecessor(settings):
    """The predecessor's node may have a clock that is ahead."""
    office = Office(settings)
    ahead = office.succession.generation + 5000
    office.succession.on_generation(ahead)
    assert (office.succession.generation, office.succession.successor) == (ahead + 1, 0)


def test_generations_follow_the_api_servers_clock(tmp_path, monkeypatch):
    """A pod on a node whose clock is an hour behind is still above the one that it follows."""
    wall = time.time
    offices = []
    for name, wrong_by, issued in (("first", 0.0, wall() - 60), ("second", -3600.0, wall() - 1)):
        monkeypatch.setattr(time, "time", lambda by=wrong_by: wall() + by)
        (tmp_path / name / names.RUN_DIR).mkdir(parents=True)
        made = checkpoint_pod.settings_of(tmp_path / name, auth="serviceaccount")
        life = {"iat": int(issued), "exp": int(issued) + 3600}
        (made.token_home / "token").write_text(jwt.encode(life, "k" * 32, algorithm="HS256"))
        offices.append(Office(made).succession)
    first, second = offices
    assert first.generation < second.generation
    first.on_generation(second.generation)
    second.on_generation(first.generation)
    assert second.successor == 0


def test_one_that_has_been_there_gives_way(settings, monkeypatch):
    """Whoever is greater came after it."""
    monkeypatch.setattr(failover, "OPENING_SECONDS", 0.0)
    office = Office(settings)
    own = office.succession.generation
    office.succession.on_generation(own)
    assert office.succession.successor == 0
    office.succession.on_generation(own + 1)
    assert (office.succession.generation, office.succession.successor) == (own, own + 1)


def test_a_restart_goes_on_and_is_no_new_pod(settings):
    """It takes what its pod's volume has, one generation on; a greater one has replaced its pod."""
    first = Office(settings)
    first.number = 7
    first.succession.persist_state("something new", ["another-pod"])
    first.number = 8
    first.succession.persist_state(
        "something new", ["another-pod"]
    )  # nothing that must not be lost
    second = Office(settings)
    assert second.taken == [(7, True)]
    assert second.succession.generation == first.succession.generation + 1
    second.succession.on_generation(second.succession.generation + 1)
    assert second.succession.successor


def test_a_newer_copy_is_taken_before_it_can_be_replaced(settings):
    """Two pods have copies, one older than the other, and the older is known first: whoever keeps
    the newer one is given none that was made of the older, not even if it asks for nothing else."""
    office = Office(settings)
    began = office.succession.generation - 100

    def known(revision: int, number: int) -> CoordinatorState:
        return CoordinatorState(began, revision, RendezvousState(number=number, expected=1))

    async def ask(client, method: str, revision: int, state: CoordinatorState | None = None):
        headers = {names.POD_HEADER: "keeper", names.COPY_HEADER: f"{began}.{revision}"}
        body = None if state is None else codec.dumps(state)
        async with client.request(method, names.PATH_STATE, data=body, headers=headers) as answer:
            return answer.status, names.COPY_HEADER in answer.headers

    async def pods_come() -> list[tuple[int, bool]]:
        application = web.Application()
        application.add_routes(office.succession.guard_routes(office.succession.routes()))
        async with test_utils.TestClient(test_utils.TestServer(application)) as client:
            told = [await ask(client, "POST", 3, known(3, number=1))]
            office.succession.persist_state("round 1", ["keeper"])
            told.append(await ask(client, "GET", 5))
            told.append(await ask(client, "POST", 5, known(5, number=2)))
            told.append(await ask(client, "GET", 5))
            return told

    answers = asyncio.run(pods_come())
    assert answers == [(200, False), (names.STATUS_COPY_WANTED, False), (200, True), (200, True)]
    assert [number for number, _ in office.taken] == [1, 2]

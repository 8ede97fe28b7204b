# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pull of another pod's slot over a network that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import Callable

import crc32c
import pytest

from rover_kf import errors
from rover_kf.api.checkpoints import SlotInfo
from rover_kf.sidecar.http.peer_client import BUFFER_BYTES, HttpPeerClient
from rover_kf.sidecar.http.peer_source import ATTEMPTS, PeerSource
from rover_kf.sidecar.slots.slots import PodSlots
from rover_kf.sidecar.slots.sources import copy_into
from tests.support.faults.cutting_proxy import CuttingProxy
from tests.support.pods import checkpoint_pod
from tests.support.pods.served_slot import CONTENT, Served
from tests.support.states import identities

LARGE = CONTENT * 8
MIB = 1 << 20
HEADERS_BYTES = 4 << 10
"""At most, of an answer."""
READ_AHEAD_BYTES = 2 * BUFFER_BYTES + (256 << 10) + HEADERS_BYTES
"""What a reader on a busy machine has not yet taken is lost at a cut: aiohttp reads on until it
holds more than twice what is its buffer's size, asyncio a quarter MiB at once."""


class Pull:
    """One pull of step 7 into a file, over a proxy or directly.

    Args:
        home: for slots and file.
        content: of the slot.
        cuts: of the proxy.
    """

    def __init__(self, home: pathlib.Path, content: bytes, cuts: list[int]) -> None:
        self.home, self.content, self.cuts = home, content, cuts
        self.settings = checkpoint_pod.settings_of(home)
        self.served = Served(PodSlots(self.settings), content)
        self.pauses: list[float] = []
        self.asked: list[int] = []
        self.passed = 0
        (home / "token").write_text("a token")

    async def run(self, at_pause: Callable[[CuttingProxy], None] = lambda _: None, **how) -> bytes:
        """The bytes that came; ``at_pause`` is called in each pause."""
        async with self.served.running(**how), _peers(self.settings) as peers:
            back = ("127.0.0.1", self.served.port)
            with CuttingProxy(("127.0.0.1", 0), back, self.cuts) as proxy:

                async def sleep(seconds: float) -> None:
                    self.pauses.append(seconds)
                    at_pause(proxy)

                source = PeerSource(peers, self._holding(proxy.address), sleep)
                target = self.home / "target"
                target.write_bytes(bytes(len(self.content)))
                try:
                    with target.open("r+b") as file:
                        await copy_into(source, file.fileno())
                finally:
                    self.asked, self.passed = proxy.asked, sum(proxy.answered)
                return target.read_bytes()

    def _holding(self, address: str) -> SlotInfo:
        return SlotInfo(
            pod="other", address=address, local_rank=0, rank=4, world_size=5,
            state=identities.state(7), replicated=True, snapshot_bytes=len(self.content),
            checksum=crc32c.crc32c(self.content),
        )  # fmt: skip


@contextlib.asynccontextmanager
async def _peers(settings):
    peers = HttpPeerClient(settings)
    await peers.start()
    try:
        yield peers
    finally:
        await peers.stop()


def test_a_pull_goes_on_where_it_broke_off(tmp_path):
    """Cut four times, bit-equal in the end; what went over the network is about one snapshot."""
    cuts = [9 * MIB, MIB, 2 * MIB, 200 << 10]
    pull = Pull(tmp_path, LARGE, cuts)
    assert asyncio.run(pull.run()) == LARGE
    print(f"asked from {pull.asked}, {pull.passed} bytes passed of {len(LARGE)}")
    assert pull.asked[0] == 0
    assert pull.asked == sorted(pull.asked)
    assert len(pull.asked) == len(cuts) + 1
    lost = [min(cut, READ_AHEAD_BYTES) for cut in cuts]
    assert pull.asked[1] >= cuts[0] - lost[0]
    assert len(LARGE) <= pull.passed <= len(LARGE) + sum(lost) + (len(cuts) + 1) * HEADERS_BYTES


def test_a_peer_that_stays_away_is_given_up(tmp_path):
    """After as many attempts as are allowed, each after a longer pause."""
    pull = Pull(tmp_path, LARGE, [9 * MIB])
    with pytest.raises(errors.ClusterUnavailable, match="cannot be reached"):
        asyncio.run(pull.run(CuttingProxy.leave))
    assert pull.pauses == pytest.approx([0.2 * 2**number for number in range(ATTEMPTS - 1)])


def test_a_peer_that_gives_next_to_nothing_is_given_up(tmp_path):
    """Each attempt gets some bytes, too few to count; those that got many do not count against."""
    cuts = [5 * MIB, 5 * MIB, *[2000] * ATTEMPTS]
    pull = Pull(tmp_path, LARGE, cuts)
    with pytest.raises(errors.ClusterUnavailable, match="broke off"):
        asyncio.run(pull.run())
    assert pull.pauses == pytest.approx([0.2, *(0.2 * 2**number for number in range(ATTEMPTS - 1))])


def test_a_peer_that_gives_nothing_at_all_is_not_waited_for(tmp_path):
    """Whoever chose it may know another one."""
    pull = Pull(tmp_path, LARGE, [])

    async def ask():
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # nobody else listens there meanwhile
            port = nobody.getsockname()[1]
            async with _peers(pull.settings) as peers:
                source = PeerSource(peers, pull._holding(f"127.0.0.1:{port}"), pytest.fail)
                async for _ in source.blocks():
                    pytest.fail("nobody gave something")

    with pytest.raises(errors.ClusterUnavailable, match="cannot be reached"):
        asyncio.run(ask())


def test_another_state_in_the_slot_is_refused(tmp_path):
    """The step has the same number, its bytes do not: halves of two states are no state."""
    pull = Pull(tmp_path, LARGE, [9 * MIB])

    def overwrite(_: CuttingProxy) -> None:
        pull.served.save(LARGE[::-1])

    with pytest.raises(errors.CorruptSnapshot, match="no longer serves step 7"):
        asyncio.run(pull.run(overwrite))
    assert pull.pauses == [0.2]


class Starting:
    """Admits the first; then it does not know the cluster's keys for a while, as a sidecar that
    was started anew."""

    def __init__(self, times: int) -> None:
        self.left, self.first = times, True

    async def admit(self, authorization: str, path: str) -> bool:
        assert path.startswith("/v1/slots")
        assert authorization == "Bearer a token"
        if self.first or not self.left:
            self.first = False
            return True
        self.left -= 1
        raise errors.ClusterUnavailable("no keys yet")


def test_a_peer_that_is_not_ready_again_is_waited_for(tmp_path):
    """Its refusals say nothing of the slot."""
    pull = Pull(tmp_path, LARGE, [9 * MIB])
    assert asyncio.run(pull.run(gate=Starting(3))) == LARGE
    assert pull.pauses == pytest.approx([0.2, 0.4, 0.8, 1.6])

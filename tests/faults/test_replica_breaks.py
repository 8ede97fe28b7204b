# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sidecars copy each other's slots over a network that breaks, and over one that is capped."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import crc32c
import pytest

from rover_kf.api import names
from rover_kf.checkpoint.arena.arena import Arena
from tests.support.faults.cutting_proxy import CuttingProxy
from tests.support.pods import checkpoint_pod
from tests.support.pods.bare_trainer import Trainer
from tests.support.states import identities
from tests.support.waiting import eventually

MIB = 1 << 20
CAP = 4 * MIB
"""Bytes a second."""
BURST = MIB
"""Free of it."""


@contextlib.contextmanager
def _two(
    home: pathlib.Path,
    cuts: list[int],
    *,
    holds: bool = False,
    resets: bool = False,
    **changes: object,
) -> Iterator[tuple[checkpoint_pod.Pod, checkpoint_pod.Pod, CuttingProxy]]:
    """Two pods of one job, a proxy before the second one; the coordinator is in the first."""
    port = checkpoint_pod.free_port()
    with checkpoint_pod.pods(home, 2, behind={1: port}, arena_bytes=128 * MIB, **changes) as some:
        address = some[1].settings.address
        front, back = (address, some[1].settings.port), (address, port)
        with CuttingProxy(front, back, cuts, holds=holds, resets=resets) as proxy:
            yield *some, proxy


def _content(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def _replica(keeper: checkpoint_pod.Pod, rank: int) -> tuple[int, bytes] | None:
    """Step and bytes of the replica that the pod offers, if it offers one."""
    arena = Arena(keeper.settings.volume_path / "arena" / f"replica-{rank}")
    for seal in arena.sealed():
        data = arena.slot_path(seal.slot).read_bytes()[: seal.length]
        assert arena.record.read_checksum(seal) in (None, crc32c.crc32c(data))
        return seal.state.step, data
    return None


def test_a_replica_is_whole_whatever_broke_and_no_faster_than_its_cap(tmp_path):
    """Cut three times: bit-equal, about one snapshot over the network, in no less than its time."""
    cuts = [5 * MIB, MIB, 2 * MIB]
    with _two(tmp_path, cuts, checkpoint_replica_bandwidth=CAP) as (first, second, proxy):
        contents = [_content(12 * MIB + rank, rank) for rank in range(2)]
        begun = time.monotonic()
        for rank, pod in enumerate((first, second)):
            Trainer(pod, rank, 2).save(3, contents[rank], replicated=False)
        found = eventually(lambda: _replica(first, 1), within=120)
        seconds = time.monotonic() - begun
        assert found == (3, contents[1])
        assert eventually(lambda: _replica(second, 0), within=120) == (3, contents[0])
        passed = sum(proxy.answered)
    print(f"{passed} bytes of {len(contents[1])} in {seconds:.2f} s, asked from {proxy.asked}")
    assert len(proxy.asked) == len(cuts) + 1
    assert proxy.asked == sorted(proxy.asked)
    assert proxy.asked[0] == 0 < proxy.asked[-1]
    # Less than if each break had cost all that had come: held back, much waits in buffers.
    assert len(contents[1]) <= passed < len(contents[1]) + sum(cuts)
    assert seconds > (len(contents[1]) - BURST) / CAP


def test_a_slot_that_changed_while_a_pull_was_broken_is_not_half_kept(tmp_path):
    """What was pulled of the step is offered to nobody, neither before the pull can go on nor
    after it was refused; the newest step is kept instead."""
    with _two(tmp_path, [2 * MIB], holds=True) as (first, second, proxy):
        trainers = [Trainer(first, 0, 2), Trainer(second, 1, 2)]
        for trainer in trainers:
            trainer.save(3, _content(4 * MIB, 3), replicated=False)
        eventually(lambda: not proxy.passes.is_set(), what="the pull is broken")
        base = f"http://{first.settings.endpoint}{names.PATH_SLOTS}/replica-1"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{base}/{identities.state(3).key}")
        assert refused.value.code == 404
        refused.value.close()
        assert _replica(first, 1) is None
        for step in (4, 5):
            for trainer in trainers:
                trainer.save(step, _content(4 * MIB, step), replicated=False)
        proxy.passes.set()
        found = eventually(lambda: _replica(first, 1), within=60)
        assert found == (5, _content(4 * MIB, 5))
        warnings = first.told(names.EVENT_CHECKPOINT_WARNING)
    print(f"{warnings}")
    assert any("no longer serves step 3" in warning for warning in warnings)


def test_a_restore_goes_on_when_the_peers_sidecar_is_started_anew(tmp_path):
    """Reset twice, the peer killed each time: bit-equal, not from the begin again, and no cap of
    replicas holds it back."""
    content = _content(24 * MIB, 7)
    cuts = [9 * MIB, 5 * MIB]
    with _two(tmp_path, cuts, holds=True, resets=True, checkpoint_replica_bandwidth=1000) as (
        first, second, proxy,
    ):  # fmt: skip
        trainers = [Trainer(first, 0, 2), Trainer(second, 1, 2)]
        trainers[1].save(7, content)
        with concurrent.futures.ThreadPoolExecutor() as ranks:
            answers = [ranks.submit(trainer.restore, 2) for trainer in trainers]
            assert answers[1].result().step == 7
            for _ in cuts:
                eventually(lambda: not proxy.passes.is_set(), what="the pull is broken")
                second.kill()
                proxy.passes.set()
                second.start()
            reply = answers[0].result()
        assert (reply.step, reply.source) == (7, "peer")
        data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
        passed = sum(proxy.answered)
    print(f"{passed} bytes of {len(content)}, asked from {proxy.asked}")
    assert data == content
    assert reply.checksum == crc32c.crc32c(content)
    # How much a reset costs is up to the kernel's buffers, which are smaller than the first cut.
    assert len(proxy.asked) == 3
    assert proxy.asked[0] == 0 < proxy.asked[1] <= proxy.asked[2]

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of one job keep parities of each other's slots, and are lost with their memory."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import random
import shutil
from collections.abc import Iterator, Sequence

import checkpoint_pod
import crc32c
from bare_trainer import Trainer
from cutting_proxy import CuttingProxy
from known_states import Form
from tests_support import eventually

from rover_kf.api import names
from rover_kf.api.checkpoints import RestoreReply, Wanted
from rover_kf.checkpoint.arena import Arena

MIB = 1 << 20
SIZES = (2 * MIB + 1, 3 * MIB, MIB // 16, 3 * MIB - 7)
"""Of the ranks' snapshots."""


class Job:
    """Four pods of a rank each, one group.

    Args:
        pods: running.
    """

    def __init__(self, pods: list[checkpoint_pod.Pod]) -> None:
        self.pods, self.round = pods, 1
        self.trainers = [Trainer(pod, rank, len(pods)) for rank, pod in enumerate(pods)]

    def save(self, step: int) -> None:
        """Each rank seals bytes of its own."""
        for rank, trainer in enumerate(self.trainers):
            trainer.save(step, content(step, rank), replicated=False)

    def is_kept(self, step: int) -> bool:
        """Whether a parity of the step is there within a minute."""
        return self.trainers[-1].wait(step, "replica").done

    def lose(self, *lost: int) -> None:
        """Pods are replaced; all that they had is gone."""
        for index in lost:
            self.pods[index].kill()
            shutil.rmtree(self.pods[index].settings.home)
        for index in lost:
            self.pods[index].start()

    def restore(self) -> list[RestoreReply]:
        """A new round; what each rank was given, every byte looked at."""
        self.round += 1
        replies = _at_once(self.trainers, self.round, [()] * len(self.pods))
        for rank, reply in enumerate(replies):
            data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
            assert data == content(reply.step, rank)
            assert reply.checksum == crc32c.crc32c(data)
        return replies

    def parity(self, index: int) -> Arena:
        """What a pod holds for the others."""
        return Arena(self.pods[index].settings.home / "arena" / f"{names.PARITY_PLACE}0")


def content(step: int, rank: int) -> bytes:
    return random.Random(100 * step + rank).randbytes(SIZES[rank])


def _at_once(
    trainers: Sequence[Trainer], round_: int, wanted: Sequence[tuple[Wanted, ...]]
) -> list[RestoreReply]:
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        asked = [ranks.submit(t.restore, round_, w) for t, w in zip(trainers, wanted, strict=True)]
        return [answer.result() for answer in asked]


@contextlib.contextmanager
def _job(home: pathlib.Path, **changes: object) -> Iterator[Job]:
    with checkpoint_pod.pods(home, 4, checkpoint_parity_group=4, **changes) as pods:
        yield Job(pods)


def test_any_lost_pod_comes_back_from_parity(tmp_path):
    """Each in turn, the coordinator's among them, with memory, sidecar and its part of the parity;
    bit-equal, at the newest step, and the others from their own memory. A part takes a third of the
    largest slot, and there are no copies."""
    with _job(tmp_path) as job:
        for lost in range(4):
            job.save(lost + 1)
            assert job.is_kept(lost + 1)
            job.lose(lost)
            replies = job.restore()
            assert [reply.step for reply in replies] == [lost + 1] * 4
            expected = ["parity" if rank == lost else "memory" for rank in range(4)]
            assert [reply.source for reply in replies] == expected
            (story,) = job.pods[lost].told(names.EVENT_RESTORED)
            assert f"rank {lost} of 4 resumes at step {lost + 1} from parity" in story
        seals = [job.parity(index).sealed() for index in range(3)]
        places = {path.parent.name for path in tmp_path.glob("*/arena/*/control")}
    lengths = [seal.length for found in seals for seal in found]
    print(f"slots of {SIZES} bytes, parities of {lengths}")
    assert places == {"0", "parity-0"}
    # Those that were there have the parity before it, too.
    assert [[seal.step for seal in found] for found in seals] == [[4, 3], [4, 3], [4]]
    assert max(SIZES) // 3 < max(lengths) < max(SIZES) // 3 + 4096


def test_a_pod_that_is_lost_while_the_next_parity_is_made_goes_back_to_the_one_before(tmp_path):
    """All others still hold that step. A sidecar alone that is killed meanwhile costs no more than
    that parity: its pod has its slots, and makes its part of the next one."""
    with _job(tmp_path, checkpoint_replica_bandwidth=2 * MIB) as job:
        job.save(1)
        eventually(lambda: _written(job.parity(1)), every=0.01, what="a parity is being made")
        job.pods[1].kill()
        job.pods[1].start()
        job.save(2)
        assert job.is_kept(2)
        job.save(3)
        eventually(
            lambda: len(_written(job.parity(0))) == 1, every=0.01, what="the next one is, too"
        )
        job.lose(2)
        replies = job.restore()
        assert [(reply.step, reply.source) for reply in replies] == [
            (2, "parity" if rank == 2 else "memory") for rank in range(4)
        ]
        job.save(4)
        assert job.is_kept(4)


def _written(parity: Arena) -> list[int]:
    """Slots that are being written."""
    return [seal.slot for seal in parity.control.read() if seal is not None and not seal.sealed]


def test_two_lost_pods_cost_a_way_to_storage(tmp_path):
    """One more than a parity brings back: all ranks take the checkpoint on storage, though two
    still have a newer step."""
    form = Form("own", world_size=4)
    with _job(tmp_path, storage=tmp_path / "pvc", persist_seconds=3600.0) as job:
        for rank, trainer in enumerate(job.trainers):
            trainer.save(1, form.bytes_of(1, 1, rank), replicated=False)
        assert job.trainers[0].wait(1, "durable").done
        for rank, trainer in enumerate(job.trainers):
            trainer.save(2, form.bytes_of(2, 1, rank), replicated=False)
        assert job.is_kept(2)
        job.lose(1, 3)
        replies = _at_once(job.trainers, 2, [()] * 4)
        assert [(reply.step, reply.source) for reply in replies] == [(1, "storage")] * 4


def test_a_lost_pod_that_nobody_replaces_leaves_its_pieces(tmp_path):
    """Of a state in pieces (FSDP2) the three that are left go on, each with the rows that it has in
    a world of three; those of the lost pod come from parity."""
    four, three = (Form("sharded", world_size=size, all_rows=4092) for size in (4, 3))
    with _job(tmp_path) as job:
        for rank, trainer in enumerate(job.trainers):
            trainer.save(5, four.bytes_of(5, 1, rank), replicated=False, pieces=True)
        assert job.is_kept(5)
        job.pods[3].kill()
        trainers = [Trainer(pod, rank, 3) for rank, pod in enumerate(job.pods[:3])]
        replies = _at_once(trainers, 2, [three.wanted(rank) for rank in range(3)])
        for rank, reply in enumerate(replies):
            data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
            assert three.check(data, 5, rank) == 1
            assert (reply.step, reply.source) == (5, "parity")


def test_a_slot_that_changes_while_it_is_read_is_in_no_parity(tmp_path):
    """Cut in the middle, its step is overwritten: nothing is sealed of it. The newest step's is,
    though it was cut, too, and went on where it was; a pod that is lost then comes back whole."""
    port, cut = checkpoint_pod.free_port(), MIB
    with checkpoint_pod.pods(tmp_path, 2, behind={1: port}, checkpoint_parity_group=3) as pods:
        job, address = Job(pods), pods[1].settings.address
        front, back = (address, pods[1].settings.port), (address, port)
        with CuttingProxy(front, back, [cut, cut], holds=True) as proxy:
            job.save(3)
            eventually(lambda: not proxy.passes.is_set(), what="it is cut")
            job.save(4)
            job.save(5)
            assert job.parity(0).sealed() == ()
            proxy.passes.set()
            eventually(lambda: not proxy.passes.is_set(), what="it is cut again")
            proxy.passes.set()
            assert job.is_kept(5)
            warnings = pods[0].told(names.EVENT_CHECKPOINT_WARNING)
            job.lose(0)
            replies = job.restore()
    print(f"asked from {proxy.asked}: {warnings}")
    assert [(reply.step, reply.source) for reply in replies] == [(5, "parity"), (5, "memory")]
    assert any("no longer serves step 3" in warning for warning in warnings)
    assert [begin > 0 for begin in proxy.asked] == [False, True, False, True, True]


def test_all_ranks_of_a_lost_pod_come_back(tmp_path):
    """Pods of two ranks: a parity of the first ones' slots and one of the second ones'."""
    with checkpoint_pod.pods(tmp_path, 3, checkpoint_parity_group=3) as pods:
        trainers = [Trainer(pods[rank // 2], rank, 6, local=rank % 2) for rank in range(6)]
        contents = [random.Random(rank).randbytes(MIB + rank) for rank in range(6)]
        for trainer, data in zip(trainers, contents, strict=True):
            trainer.save(1, data, replicated=False)
        assert trainers[0].wait(1, "replica").done
        pods[1].kill()
        shutil.rmtree(pods[1].settings.home)
        pods[1].start()
        replies = _at_once(trainers, 2, [()] * 6)
        found = [pathlib.Path(one.path).read_bytes()[: one.snapshot_bytes] for one in replies]
    assert [reply.source for reply in replies] == ["memory"] * 2 + ["parity"] * 2 + ["memory"] * 2
    assert found == contents

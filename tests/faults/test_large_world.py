# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Many ranks, and many tensors, within the memory of a sidecar."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
import types
from collections.abc import Sequence

import numpy as np
import pytest

from rover_kf.api import names
from rover_kf.api.checkpoints import RequestedBoxes
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.format.manifest import Manifest, RankFile
from rover_kf.checkpoint.format.snapshot import Entry
from rover_kf.checkpoint.format.tensor_layout import LAYOUT_KEY, TensorLayout, TensorShard
from rover_kf.checkpoint.resharding import write_shares
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.syscalls import Syscalls
from rover_kf.injection.sizing import SIDECAR_MEMORY
from tests.support.pods import bare_trainer, checkpoint_pod
from tests.support.pods.sidecar_pods import SidecarPod, ended, job_folder
from tests.support.states import identities
from tests.support.waiting import eventually

POD = 8
"""Ranks of the pod that starts anew: all of its world."""
SHAPE = (512, 8)


def _rows(rank: int, world_size: int) -> tuple[int, int]:
    """Those that a rank holds of each tensor, as FSDP2 deals them out."""
    each = SHAPE[0] // world_size
    return rank * each, (rank + 1) * each


def _names(count: int) -> tuple[str, ...]:
    return tuple(
        f"optimizer.layers.{n // 9}.attention.weight.{n % 9}.exp_avg" for n in range(count)
    )


def _store(top: pathlib.Path, saved: int, tensors: Sequence[str]) -> None:
    storage = DirectoryStorage(top / "demo", Syscalls())
    folder, files = storage.folder(identities.state(5)), list[RankFile]()
    for rank in range(saved):
        begin, end = _rows(rank, saved)
        entries = [Entry(name, "U8", (end - begin, SHAPE[1]), 1) for name in tensors]
        pieces = {name: TensorShard(SHAPE, (begin, 0)) for name in tensors}
        metadata = {LAYOUT_KEY: TensorLayout(shards=pieces).to_text(), "rover.state": "{}"}
        layout = snapshot.plan(entries, metadata)
        head = snapshot.header(layout, metadata)
        slot = memoryview(head + bytes([rank]) * (layout.length - len(head)))
        share = write_shares.plan_share(snapshot.read(slot), rank, saved)
        parts = [memoryview(share.header), *(slot[a:b] for a, b in share.ranges)]
        files.append(storage.write_rank(folder, rank, parts, share.length))
    storage.write_manifest(
        Manifest(
            "",
            identities.state(5),
            identities.state(5),
            world_size=saved,
            replicated=False,
            files=tuple(files),
            pieces=True,
        )
    )


def _restored(pod: checkpoint_pod.Pod, rank: int, tensors: tuple[str, ...]) -> bytes:
    """The snapshot that a training process of the pod is given."""
    begin, end = _rows(rank, POD)
    wanted = RequestedBoxes(SHAPE, (begin, 0), (end - begin, SHAPE[1]), tensors)
    reply = bare_trainer.Trainer(pod, rank, POD, rank).restore(1, (wanted,))
    assert (reply.step, reply.source) == (5, "storage")
    return pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]


def _own_memory(pid: int) -> int:
    """Bytes of no file that a process and its children have, what they share counted once."""
    total = 0
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon"))
        for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(map(_own_memory, map(int, children.read_text().split())))
    return total


def _most_memory(pid: int, works: Sequence[concurrent.futures.Future[object]]) -> int:
    """That a sidecar has until these are done."""
    most = 0

    def measured() -> bool:
        nonlocal most
        most = max(most, _own_memory(pid))
        return all(work.done() for work in works)

    eventually(measured, within=300, every=0.02, what="all is done")
    print(f"{most >> 20} MiB at most")
    return most


@pytest.mark.parametrize(("saved", "count"), [(64, 700), (16, 5000)])
def test_a_restore_from_many_ranks_fits_into_a_sidecar(tmp_path, saved, count):
    """Each of a pod's eight ranks has to know what all of them held: beyond its limit the sidecar
    would be killed in each attempt, and the job never start again."""
    tensors = _names(count)
    _store(tmp_path / "storage", saved, tensors)
    with (
        checkpoint_pod.pods(tmp_path, 1, storage=tmp_path / "storage", arena_bytes=1 << 30) as (
            pod,
        ),
        concurrent.futures.ThreadPoolExecutor(POD) as asking,
    ):
        assert pod.process is not None
        ranks = [asking.submit(_restored, pod, rank, tensors) for rank in range(POD)]
        most = _most_memory(pod.process.pid, ranks)
        for rank, data in enumerate(rank.result() for rank in ranks):
            found = snapshot.read(data)
            begin, end = _rows(rank, POD)
            expected = np.repeat(np.arange(begin, end) // (SHAPE[0] // saved), SHAPE[1])
            for place in found.tensors.values():
                assert data[place.begin : place.end] == expected.astype(np.uint8).tobytes()
            assert found.tensors.keys() == set(tensors)
    assert most < SIDECAR_MEMORY


MANY = tuple(f"optimizer.layers.{n % 48}.experts.{n // 48}.weight.exp_avg" for n in range(40_000))
"""As a mixture of experts has them."""


def _many(rank: int, world_size: int) -> bytes:
    """A rank's slot of many tensors."""
    pieces = {name: TensorShard((8 * world_size,), (8 * rank,)) for name in MANY}
    metadata = {
        LAYOUT_KEY: TensorLayout(shards=pieces, complete=True).to_text(),
        "rover.state": "{}",
    }
    counters = [Entry(f"step {n}", "U8", (), 1) for n in range(100)]
    layout = snapshot.plan([*counters, *(Entry(n, "U8", (8,), 1) for n in MANY)], metadata)
    head = snapshot.header(layout, metadata)
    return head.ljust(layout.length, bytes([rank]))


def _ranks(pod: SidecarPod, world: int) -> list[bare_trainer.Trainer]:
    home = types.SimpleNamespace(settings=types.SimpleNamespace(volume_path=pod.home))
    return [bare_trainer.Trainer(home, rank, world, rank) for rank in range(world)]


def test_tens_of_thousands_of_tensors_fit_into_a_sidecar(tmp_path):
    """Stored by each rank of a pod, again and again: what a header takes is given back. And read by
    those of a pod that comes in its place, each its own file."""
    world = 4
    slots = [_many(rank, world) for rank in range(world)]
    with job_folder() as (folder, network):
        address = f"{network}.1"
        settings = {
            names.ENV_NODES: "1",
            names.ENV_MAX_NODES: "1",
            names.ENV_ARENA_BYTES: str(1 << 30),
            "checkpoint.path": str(tmp_path),
            "checkpoint.persist-seconds": "0",
        }
        pod = SidecarPod(folder, 0, address, address, settings=settings)
        other = SidecarPod(folder, 0, address, address, "another", settings=settings)
        with ended(pod, other), concurrent.futures.ThreadPoolExecutor(world) as saving:
            pod.start().ready()
            ranks = _ranks(pod, world)

            def saved() -> None:
                for step in (1, 2, 3):
                    for rank, slot in zip(ranks, slots, strict=True):
                        rank.save(step, slot, replicated=False, pieces=True)
                    assert ranks[0].wait(step, "durable").done

            saves = saving.submit(saved)
            most = _most_memory(pod.process.pid, [saves])
            saves.result()
            pod.kill()
            ranks = _ranks(other.start().ready(), world)

            def restored(rank: int) -> None:
                wanted = RequestedBoxes((8 * world,), (8 * rank,), (8,), MANY)
                reply = ranks[rank].restore(2, (wanted,))
                assert (reply.step, reply.source) == (3, "storage")
                assert pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes] == slots[rank]

            restores = [saving.submit(restored, rank) for rank in range(world)]
            most = max(most, _most_memory(other.process.pid, restores))
            for restore in restores:
                restore.result()
        stored = DirectoryStorage(tmp_path / "train", Syscalls())
        there = stored.folder(identities.state(3))
        for file in stored.verify(there).files:
            assert (
                b"".join(map(bytes, stored.read_range(there, file, 0, file.length)))
                == (slots[file.rank])
            )
    assert most < SIDECAR_MEMORY

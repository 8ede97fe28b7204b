# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's ranks start from what a world of many ranks had, within the memory of a sidecar."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib

import checkpoint_pod
import numpy as np
from tests_support import eventually

from rover_kf.api import codec, names
from rover_kf.api.checkpoints import RestoreReply, RestoreRequest, Wanted
from rover_kf.api.unix_connection import UnixConnection
from rover_kf.checkpoint import snapshot, split
from rover_kf.checkpoint.directory_storage import DirectoryStorage
from rover_kf.checkpoint.files import Files
from rover_kf.checkpoint.kinds import KEY, Kinds, Piece
from rover_kf.checkpoint.manifest import Manifest, RankFile
from rover_kf.checkpoint.snapshot import Entry
from rover_kf.injection.sizing import SIDECAR_MEMORY

SAVED, POD = 64, 8
"""Ranks of the world that saved, and of the pod that starts anew: all of its world."""
TENSORS = tuple(f"optimizer.layers.{n // 9}.attention.weight.{n % 9}.exp_avg" for n in range(700))
SHAPE = (512, 8)


def _rows(rank: int, world_size: int) -> tuple[int, int]:
    """Those that a rank holds of each tensor, as FSDP2 deals them out."""
    each = SHAPE[0] // world_size
    return rank * each, (rank + 1) * each


def _store(top: pathlib.Path) -> None:
    storage = DirectoryStorage(top / "demo", Files())
    folder, files = storage.folder(5, 1), list[RankFile]()
    for rank in range(SAVED):
        begin, end = _rows(rank, SAVED)
        entries = [Entry(name, "U8", (end - begin, SHAPE[1]), 1) for name in TENSORS]
        pieces = {name: Piece(SHAPE, (begin, 0)) for name in TENSORS}
        metadata = {KEY: Kinds(pieces=pieces).to_text(), "rover.state": "{}"}
        layout = snapshot.plan(entries, metadata)
        head = snapshot.header(layout, metadata)
        slot = memoryview(head + bytes([rank]) * (layout.length - len(head)))
        share = split.share(snapshot.read(slot), rank, SAVED)
        parts = [memoryview(share.header), *(slot[a:b] for a, b in share.ranges)]
        files.append(storage.write_rank(folder, rank, parts, share.length))
    storage.write_manifest(Manifest(5, 1, SAVED, replicated=False, files=tuple(files), pieces=True))


def _restored(pod: checkpoint_pod.Pod, rank: int) -> bytes:
    """The snapshot that a training process of the pod is given."""
    begin, end = _rows(rank, POD)
    wanted = tuple(Wanted(name, SHAPE, (begin, 0), (end - begin, SHAPE[1])) for name in TENSORS)
    request = RestoreRequest(rank, rank, POD, 1, wanted)
    connection = UnixConnection(str(pod.settings.home / names.SOCKET), 300)
    with contextlib.closing(connection):
        connection.request("POST", names.PATH_RESTORE, codec.dumps(request))
        response = connection.getresponse()
        data = response.read()
        assert response.status == 200, data
    reply = codec.loads(RestoreReply, data)
    assert (reply.step, reply.source) == (5, "storage")
    return pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]


def _own_memory(pid: int) -> int:
    """Bytes that a process shares with nobody."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def test_a_restore_from_many_ranks_fits_into_a_sidecar(tmp_path):
    """Each of a pod's eight ranks has to know what all of 64 held: beyond its limit the sidecar
    would be killed in each attempt, and the job never start again."""
    _store(tmp_path / "storage")
    with (
        checkpoint_pod.pods(tmp_path, 1, storage=tmp_path / "storage", arena_bytes=1 << 30) as (
            pod,
        ),
        concurrent.futures.ThreadPoolExecutor(POD) as asking,
    ):
        assert pod.process is not None
        pid, most = pod.process.pid, 0
        ranks = [asking.submit(_restored, pod, rank) for rank in range(POD)]

        def measured() -> bool:
            nonlocal most
            most = max(most, _own_memory(pid))
            return all(rank.done() for rank in ranks)

        eventually(measured, within=300, every=0.02, what="all ranks have what they start from")
        for rank, data in enumerate(rank.result() for rank in ranks):
            found = snapshot.read(data)
            begin, end = _rows(rank, POD)
            expected = np.repeat(np.arange(begin, end) // (SHAPE[0] // SAVED), SHAPE[1])
            for place in found.tensors.values():
                assert data[place.begin : place.end] == expected.astype(np.uint8).tobytes()
            assert found.tensors.keys() == set(TENSORS)
    print(f"{most >> 20} MiB at most")
    assert most < SIDECAR_MEMORY

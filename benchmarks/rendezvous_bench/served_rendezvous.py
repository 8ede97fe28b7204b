# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The same round through a real sidecar: what HTTP and JSON cost it for each launcher.

One connection a launcher, as the pods' sidecars hold them; the order to start names every member,
so its bytes, unlike its computing, grow with the square of the members.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from benchmarks.rendezvous_bench.simulated_launchers import incarnation
from rover_kf.api import codec, names
from rover_kf.api.membership import JoinRequest, Member

ADDRESS = "127.55.0.1"
TOKEN = "of the benchmark"  # noqa: S105 - known to nobody else's sidecar
AT_ONCE = 200
"""Connections that are being opened at one time."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """One round of so many launchers."""

    cpu_seconds: float
    """Of the sidecar, from the first connection until the last launcher has its order."""
    wall_seconds: float
    order_bytes: int
    """Of the answer that starts one launcher's processes."""


def measure(size: int) -> Served:
    """Let so many launchers form a round; they are all this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with _sidecar(size) as process:
        before, began = _cpu(process.pid), time.monotonic()
        order_bytes = asyncio.run(_join_all(size))
        return Served(_cpu(process.pid) - before, time.monotonic() - began, order_bytes)


@contextlib.contextmanager
def _sidecar(size: int) -> Iterator[subprocess.Popen[bytes]]:
    # The path of a Unix socket is bounded.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="rv"))
    (folder / "token").write_text(TOKEN)
    numbers = {names.ENV_NODES: size, names.ENV_MIN_NODES: 1, names.ENV_MAX_NODES: size}
    settings = {
        names.ENV_HOME: str(folder),
        names.ENV_JOB: "train",
        names.ENV_NAMESPACE: "bench",
        names.ENV_POD_NAME: "train-worker-0",
        names.ENV_POD_UID: "uid-0",
        names.ENV_POD_IP: ADDRESS,
        names.ENV_REPLICA_TYPE: "worker",
        names.ENV_REPLICA_INDEX: "0",
        names.ENV_COORDINATOR: ADDRESS,
        names.ENV_ARENA_BYTES: "0",
        names.ENV_AUTH: "shared",
        names.ENV_TOKEN_HOME: str(folder),
        **{name: str(number) for name, number in numbers.items()},
    }
    command = [sys.executable, "-m", "rover_kf.sidecar"]
    process = subprocess.Popen(command, env=os.environ | settings, stderr=subprocess.DEVNULL)
    try:
        _wait_until_ready(folder / names.SOCKET, process)
        yield process
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(socket: pathlib.Path, process: subprocess.Popen[bytes]) -> None:
    while not socket.exists():
        assert process.poll() is None, "the sidecar has ended"
        time.sleep(0.05)


async def _join_all(size: int) -> int:
    slots = asyncio.Semaphore(AT_ONCE)
    sizes = await asyncio.gather(*(_join(rank, slots) for rank in range(size)))
    return max(sizes)


async def _join(rank: int, slots: asyncio.Semaphore) -> int:
    """Ask until there is an order; its bytes."""
    member = Member(f"train-worker-{rank}", incarnation(rank), rank, 1)
    body = codec.dumps(JoinRequest(member, "10.0.0.1", 29500))
    head = (
        f"POST {names.PATH_JOIN} HTTP/1.1\r\nHost: {ADDRESS}\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Accept-Encoding: gzip\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    async with slots:
        reader, writer = await asyncio.open_connection(ADDRESS, names.PORT)
    try:
        while True:
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            (line,) = [x for x in answer.split(b"\r\n") if x.lower().startswith(b"content-length")]
            data = await reader.readexactly(int(line.split(b":")[1]))
            packed = b"content-encoding: gzip" in answer.lower()
            if packed or not data.startswith(b'{"action":"wait"'):
                plain = gzip.decompress(data) if packed and rank == 0 else data
                assert packed > (rank == 0) or plain.startswith(b'{"action":"start"'), plain[:200]
                return len(data)
    finally:
        writer.close()


def _cpu(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS

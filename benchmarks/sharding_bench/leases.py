# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A thousand workers lease from a real coordinator over HTTP, each on a connection of its own.

Open loop: a request is due when its time has come, whether others were answered or not, and its
latency counts from then. The crowd takes one of the cores that it is measured on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import aiohttp

from rover_kf.api import codec, names
from rover_kf.api.data import (
    MAX_SPANS_PER_REQUEST,
    DataPlan,
    DataProgress,
    LeaseReply,
    Partition,
    RegisterReply,
)
from rover_kf.data_sharding.worker_view import LeaseTracker, WorkerIdentity

WORKERS, RATE = 1000, 500.0
"""Requests a second, of 16 leases each."""
WARM_SECONDS, SECONDS = 4.0, 30.0
ADDRESS, TOKEN = "127.211.7.1", "a benchmark's token"
PLAN = DataPlan("train", (Partition("", 0, 10**12),), 1000)

T = TypeVar("T")


def measure(seconds: float = SECONDS) -> dict[str, Any]:
    """Leases a second, and how long a request for 16 takes."""
    with _coordinator():
        return asyncio.run(_crowd(seconds))


async def _crowd(seconds: float) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=60)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        f"http://{ADDRESS}:{names.PORT}", connector=connector, timeout=timeout, headers=headers
    ) as session:
        workers = [Worker(session, number) for number in range(WORKERS)]
        for begin in range(0, WORKERS, 50):
            await asyncio.gather(*(w.register() for w in workers[begin : begin + 50]))
        gc.collect()
        gc.freeze()
        await _open_loop(workers, WARM_SECONDS)
        used = _processor_seconds()
        begun = time.perf_counter()
        asked = await _open_loop(workers, seconds)
        took = time.perf_counter() - begun
        used = _processor_seconds() - used
    late = sorted(latency for latency, _ in asked)
    return {
        "leases_per_second": round(sum(leases for _, leases in asked) / took),
        "lease_p99_ms": round(late[int(len(late) * 0.99)] * 1e3, 2),
        "leases": {
            "requests_per_second": round(len(asked) / took, 1),
            "workers": WORKERS,
            "p50_ms": round(late[len(late) // 2] * 1e3, 2),
            "p999_ms": round(late[int(len(late) * 0.999)] * 1e3, 2),
            "coordinator_and_crowd_cores": round(used / took, 2),
            "seconds": round(took, 1),
        },
    }


async def _open_loop(workers: list[Worker], seconds: float) -> list[tuple[float, int]]:
    begun = time.perf_counter()
    tasks = []
    for number in range(int(seconds * RATE)):
        due = begun + number / RATE
        rest = due - time.perf_counter()
        if rest > 0:
            await asyncio.sleep(rest)
        tasks.append(asyncio.create_task(workers[number % len(workers)].ask(due)))
    return list(await asyncio.gather(*tasks))


class Worker:
    """One training process, as its lease thread is; what it was lent it has used when it asks."""

    def __init__(self, session: aiohttp.ClientSession, number: int) -> None:
        self._session = session
        place = WorkerIdentity(1, number, WORKERS, "p")
        self._holder = LeaseTracker(PLAN, place, shared=False)
        self._turn = asyncio.Lock()

    async def register(self) -> None:
        """At the begin of the round."""
        told = self._holder.registration(DataProgress())
        self._holder.on_registered(await self._post(names.PATH_DATA_REGISTER, told, RegisterReply))

    async def ask(self, due: float) -> tuple[float, int]:
        """Tell what was used, lease 16 shards; seconds since it was due, and leases."""
        async with self._turn:
            while (span := self._holder.claim(PLAN.shard)) is not None:
                self._holder.mark_used([span])
            request = self._holder.request(MAX_SPANS_PER_REQUEST)
            reply = await self._post(names.PATH_DATA_LEASE, request, LeaseReply)
            late = time.perf_counter() - due
            self._holder.on_reply(reply)
            return late, len(reply.leases)

    async def _post(self, path: str, message: object, reply: type[T]) -> T:
        async with self._session.post(path, data=codec.dumps(message)) as response:
            body = await response.read()
            if not response.ok:
                raise RuntimeError(body)
            return codec.loads(reply, body)


@contextlib.contextmanager
def _coordinator() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="rv") as folder:
        home = pathlib.Path(folder)
        (home / "token").write_text(TOKEN)
        given = {
            names.ENV_HOME: folder,
            names.ENV_JOB: "train",
            names.ENV_NAMESPACE: "bench",
            names.ENV_POD_NAME: "train-worker-0",
            names.ENV_POD_UID: "uid",
            names.ENV_POD_IP: ADDRESS,
            names.ENV_REPLICA_TYPE: "worker",
            names.ENV_REPLICA_INDEX: "0",
            names.ENV_COORDINATOR: ADDRESS,
            names.ENV_NODES: str(WORKERS),
            names.ENV_MIN_NODES: "1",
            names.ENV_MAX_NODES: str(WORKERS),
            names.ENV_ARENA_BYTES: str(1 << 20),
            names.ENV_AUTH: "shared",
            names.ENV_TOKEN_HOME: folder,
        }
        command = [sys.executable, "-m", "rover_kf.sidecar"]
        with subprocess.Popen(
            command, env=os.environ | given, stderr=subprocess.DEVNULL
        ) as sidecar:
            try:
                _wait_for(home / names.SOCKET, sidecar)
                yield
            finally:
                sidecar.kill()


def _wait_for(socket: pathlib.Path, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
    while not socket.exists():
        if process.poll() is not None or time.monotonic() > until:
            message = f"the sidecar did not start (status {process.returncode})"
            raise RuntimeError(message)
        time.sleep(0.05)


def _processor_seconds() -> float:
    """Of this process and its children that run."""
    hertz = os.sysconf("SC_CLK_TCK")
    total = 0
    pids = [os.getpid(), *_children(os.getpid())]
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / hertz


def _children(pid: int) -> list[int]:
    listed = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]

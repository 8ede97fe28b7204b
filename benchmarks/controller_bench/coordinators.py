# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Stands in for the coordinators of simulated pods: one server on every one of their addresses.

``python coordinators.py WINDOW`` answers GET /v1/status as a coordinator whose job trains steadily,
with windows that close at times of its own, and POST /v1/scale. It notes for each window when it
closed and when it was first handed out: GET /bench/report tells it, POST /bench/reset forgets it.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
import random
import sys
import time
from typing import Any

PORT = 7411
KEPT = 64
"""Windows that a coordinator tells of."""
LATE = 10.0
"""Seconds after which a window that nobody has asked for counts as late."""
_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


@dataclasses.dataclass
class Job:
    """One job as its coordinator sees it.

    Its throughput grows with its nodes to the power of ``gain``: with most, so that another size
    would not be worth its cost; with some, so that twice the size is.
    """

    gain: float
    window: float
    step_seconds: float
    began: float
    nodes: int = 2
    was: int = 2
    """Nodes before it had this size."""
    since: float = 0.0
    """Since when it has this size."""
    handed: int = 0
    """Windows closed so far, as told at the last look."""
    told: collections.deque[str] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=KEPT)
    )
    """The newest windows as they are handed out, oldest first."""
    count: int = 0
    """Windows that were made so far, with those that are not kept any more."""
    looks: int = 0
    looked_at: float = 0.0

    @property
    def length(self) -> float:
        """Of a window: whole steps."""
        steps = -(-self.window // self.step_seconds)
        return steps * self.step_seconds

    def closed(self, now: float) -> int:
        """Windows that have closed."""
        return int((now - self.began) / self.length)

    def waits(self, now: float) -> float:
        """Seconds for which the newest window was not asked for; 0 if it was."""
        closed = self.closed(now)
        return now - (self.began + closed * self.length) if closed > self.handed else 0.0

    def windows(self, now: float) -> str:
        """The newest as JSON, oldest first; what was told once stays as it is."""
        closed = self.closed(now)
        for index in range(max(self.count, closed - KEPT), closed):
            self.told.append(json.dumps(self._window(index)))
        self.count = closed
        return ",".join(self.told)

    def resize(self, nodes: int, now: float) -> None:
        """It has so many nodes from now on."""
        self.windows(now)
        self.was, self.nodes, self.since = self.nodes, nodes, now

    def _window(self, index: int) -> dict[str, Any]:
        """The window of that number; every fourth of the first ones was at another size."""
        started = self.began + index * self.length
        nodes = self.nodes if started >= self.since else self.was
        if index % 4 == 0 and index < KEPT - 8:
            nodes = 1
        noise = 1 + random.Random(index).uniform(-0.01, 0.01)  # noqa: S311 - noise, no secret
        step = self.step_seconds * (2 / nodes) ** self.gain * noise
        return {
            "started_at": started,
            "ended_at": started + self.length,
            "nodes": nodes,
            "world_size": nodes,
            "steps": int(self.length / step),
            "samples": int(self.length / step) * 64,
            "step_seconds": step,
            "global_batch": 64.0,
            "wait_fraction": 0.01,
            "save_seconds": 0.1,
        }


class Crowd:
    """All jobs, by their first pod's address."""

    def __init__(self, window: float, profiting: int) -> None:
        self._window, self._profiting = window, profiting
        self._jobs: dict[str, Job] = {}
        self.forget()

    def forget(self) -> None:
        """Begin to note anew."""
        self._delays: list[float] = []
        self._decided: list[float] = []
        self._missed = 0
        self._since = time.time()
        self._asked: dict[str, float] = {}
        self._requests: collections.Counter[str] = collections.Counter()

    def status(self, address: str) -> bytes:
        """What the coordinator there says."""
        now = time.time()
        job = self._jobs.get(address) or self._begin(address, now)
        self._requests["status"] += 1
        self._asked.setdefault(address, now)
        job.looks, job.looked_at = job.looks + 1, now
        closed = job.closed(now)
        fresh = closed - job.handed
        if fresh > 0:
            ended = job.began + closed * job.length
            if ended > self._since:
                self._delays.append(now - ended)
                self._missed += fresh - 1
            job.handed = closed
        return f'{json.dumps(_status(job, now))[:-1]},"windows":[{job.windows(now)}]}}'.encode()

    def scale(self, address: str, nodes: int) -> bytes:
        """The controller tells of another size."""
        now = time.time()
        job = self._jobs.get(address) or self._begin(address, now)
        self._requests["scale"] += 1
        if nodes != job.nodes:
            self._decided.append(now - (job.began + job.closed(now) * job.length))
            job.resize(nodes, now)
        return b'{"done":true,"reason":""}'

    def report(self) -> bytes:
        """All that was noted."""
        now = time.time()
        late = {name: job for name, job in self._jobs.items() if job.waits(now) > LATE}
        found = {
            "jobs": len(self._jobs),
            "asked": len(self._asked),
            "asked_at": sorted(self._asked),
            "last_first_asked": max(self._asked.values(), default=0.0) - self._since,
            "handed_out_after": sorted(self._delays),
            "scaled_after": sorted(self._decided),
            "windows_missed": self._missed,
            "late": {
                name: {
                    "missed": job.closed(now) - job.handed - 1,
                    "looks": job.looks,
                    "silence": round(now - job.looked_at, 1),
                }
                for name, job in sorted(late.items())
            },
            "requests": self._requests,
            "seconds": now - self._since,
        }
        return json.dumps(found).encode()

    def _begin(self, address: str, now: float) -> Job:
        chance = random.Random(address)  # noqa: S311 - the same job each time
        profits = chance.randrange(100) < self._profiting
        step = chance.uniform(0.2, 2.0)
        began = now - chance.uniform(0, self._window) - (KEPT + 2) * (self._window + step)
        job = Job(0.9 if profits else 0.585, self._window, step, began)
        job.since = began + (KEPT - 8) * job.length
        job.handed = job.closed(now)
        self._jobs[address] = job
        return job


def _status(job: Job, now: float) -> dict[str, Any]:
    account = {"waiting": 20.0, "productive": now - job.began - 20.0}
    step = int((now - job.began) / job.step_seconds)
    return {
        "job": "simulated",
        "phase": "training",
        "round": 1,
        "nodes": job.nodes,
        "expected_nodes": job.nodes,
        "world_size": job.nodes,
        "step": step,
        "total_steps": 1_000_000,
        "sealed_step": step - step % 10,
        "durable_step": step - step % 100,
        "samples_per_second": 64 / job.step_seconds,
        "restarts": 0,
        "window_closes": job.began + (job.closed(now) + 1) * job.length,
        "goodput": account,
        "events": [],
        "started_at": job.began,
        "now": now,
        "restart_seconds": 20.0,
        "saves": step // 10,
        "save_seconds": step / 100,
        "snapshot_bytes": 1 << 30,
        "replicated": True,
        "memory_peak": 2.5e9,
        "cpu_peak": 1.5,
    }


class Connection(asyncio.Protocol):
    """One connection; requests come one after another."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note by which address it came."""
        self._transport = transport
        self._address = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        """Answer whole requests."""
        self._read += data
        head, ended, rest = self._read.partition(b"\r\n\r\n")
        if not ended:
            return
        lines = head.decode().split("\r\n")
        length = next(
            (int(line[15:]) for line in lines if line.lower().startswith("content-length:")), 0
        )
        if len(rest) < length:
            return
        body, self._read = rest[:length], rest[length:]
        method, path, _ = lines[0].split(" ")
        answer = self._answer(method, path.partition("?")[0], body)
        self._transport.write(_HEAD.format(len(answer)).encode() + answer)

    def _answer(self, method: str, path: str, body: bytes) -> bytes:
        match method, path:
            case "GET", "/v1/status":
                return self._crowd.status(self._address)
            case "POST", "/v1/scale":
                return self._crowd.scale(self._address, json.loads(body)["nodes"])
            case "GET", "/bench/report":
                return self._crowd.report()
            case "POST", "/bench/reset":
                self._crowd.forget()
                return b"{}"
            case _:
                return b'{"done":true,"reason":""}'


async def serve(window: float, profiting: int) -> None:
    """Answer until the process is ended."""
    crowd = Crowd(window, profiting)
    loop = asyncio.get_running_loop()
    every = "0.0.0.0"  # noqa: S104 - the simulated pods' addresses, in a namespace of its own
    server = await loop.create_server(lambda: Connection(crowd), every, PORT, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))

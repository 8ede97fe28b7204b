# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's sidecar, as far as checkpoints need one, in a process of its own, on real sockets.

It serves until it is killed: tests start it, kill it, start it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import pathlib
import random
import socket
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from aiohttp import web

from rover_kf.api import codec, names
from rover_kf.api.policy import CheckpointPolicy, PolicySections
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import metrics, snapshot
from rover_kf.coordinator.commit.commit_service import CommitService
from rover_kf.sidecar.checkpoint_service import CheckpointService
from rover_kf.sidecar.http.app import MAX_BODY_BYTES, MAX_LOCAL_BODY_BYTES, make_application
from rover_kf.sidecar.http.peer_client import HttpPeerClient
from rover_kf.sidecar.persist.job_storage import open_job_storage
from rover_kf.sidecar.settings import SidecarSettings
from tests.support.process_pool.fork_server import Forked, nursery
from tests.support.waiting import eventually

LOG = "log"
"""Below the pod's home: what its sidecar logs."""


def settings_of(home: pathlib.Path, **changes: object) -> SidecarSettings:
    """Settings of the pod demo-worker-0.

    Args:
        home: its volume.
        changes: to the settings; ``checkpoint_keep`` and the like are of the policy.
    """
    sections = {item.name: item.default for item in dataclasses.fields(PolicySections)}
    sections["checkpoint"] = CheckpointPolicy(
        bandwidth=0, every=10, persist_seconds=0.0, verify_replicas_every=0
    )
    for key in list(changes):
        name, _, field = key.partition("_")
        if field and name in sections:
            changed = {field: changes.pop(key)}
            sections[name] = dataclasses.replace(sections[name], **changed)
    plain = SidecarSettings(
        volume_path=home,
        job="demo",
        namespace="default",
        pod="demo-worker-0",
        pod_uid="uid-0",
        address="127.0.0.1",
        replica_type="worker",
        replica_index=0,
        coordinator_host="127.0.0.1",
        nodes=1,
        min_nodes=1,
        max_nodes=1,
        masters=0,
        arena_bytes=64 << 20,
        auth="shared",
        token_home=home,
        controller_account="",
        policy=PolicySections(**sections),
    )
    return dataclasses.replace(plain, **changes)


class Told:
    """A Story that a test can read."""

    def __init__(self, path: pathlib.Path | None = None) -> None:
        self.lines: list[tuple[str, str, bool]] = []
        self._path = path

    def record(self, reason: str, message: str, *, warning: bool = False) -> None:
        self.lines.append((reason, message, warning))
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps([reason, message, warning]) + "\n")


async def _acknowledge(_: web.Request) -> web.Response:
    return web.json_response({"done": True})


async def serve(settings: SidecarSettings, story: Told, port: int) -> None:
    """Serve a pod, its peers on this port, until the task is cancelled."""
    peers = HttpPeerClient(settings)
    await peers.start()
    place = open_job_storage(settings)
    checkpoints = CheckpointService(settings, peers, story, place)
    local = [*checkpoints.local_routes(), web.post(names.PATH_SAMPLES, _acknowledge)]
    remote = checkpoints.peer_routes()
    if settings.is_coordinator:
        commits = CommitService(settings, story, peers, storage=place and place.checkpoints)
        commits.set_generation((await commits.scan_storage()).generation + 1)
        await commits.claim()
        remote += commits.routes()
    socket_path = settings.volume_path / names.SOCKET
    socket_path.parent.mkdir(parents=True, exist_ok=True)
    socket_path.unlink(missing_ok=True)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(peers.stop)
        if place is not None:
            stack.callback(place.close)
        for routes in (local, remote):
            longest = MAX_LOCAL_BODY_BYTES if routes is local else MAX_BODY_BYTES
            runner = web.AppRunner(make_application(routes, None, max_body_bytes=longest))
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            if routes is local:
                await web.UnixSite(runner, str(socket_path)).start()
            else:
                await web.TCPSite(runner, settings.address, port).start()
        await checkpoints.start()
        stack.push_async_callback(checkpoints.stop)
        (settings.volume_path / "ready").touch()
        await asyncio.Event().wait()


def free_port() -> int:
    """A TCP port that nobody listens on now, and that the kernel gives no connection of its own
    accord: one of those may be taken until a test uses it."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(lowest // 2, lowest)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port


@dataclasses.dataclass
class Pod:
    """A running sidecar process."""

    settings: SidecarSettings
    process: Forked | None = None
    behind: int | None = None
    """Port where it listens, if on its own there is a proxy."""

    def start(self) -> None:
        """Start it and wait until it answers."""
        home = self.settings.volume_path
        home.mkdir(parents=True, exist_ok=True)
        (home / "ready").unlink(missing_ok=True)
        (home / "token").write_text("a token")
        spec = {key: _plain(value) for key, value in dataclasses.asdict(self.settings).items()}
        self.process = nursery().start(("pod", spec, self._port()))
        eventually((home / "ready").exists, within=60, every=0.01, what="the pod's sidecar is up")

    def _port(self) -> str:
        return str(self.behind or self.settings.port)

    def kill(self) -> None:
        """SIGKILL it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def told(self, reason: str) -> list[str]:
        """Messages of the events of a reason."""
        path = self.settings.volume_path / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line[1] for line in map(json.loads, lines) if line[0] == reason]

    def measured(self) -> tuple[int, dict[str, float]]:
        """The newest step in the pod's memory, and what was measured of it."""
        arena = Arena(self.settings.volume_path / "arena" / "0")
        newest = max(arena.sealed(), key=lambda seal: seal.state)
        with arena.slot_path(newest.slot).open("rb") as file:
            return newest.state.step, metrics.read_metrics(snapshot.read(file.read(newest.length)))

    def environment(self, *, rank: int = 0, world_size: int = 1, round_: int = 1) -> dict[str, str]:
        """Variables of a training process in the pod."""
        return {
            names.ENV_HOME: str(self.settings.volume_path),
            names.ENV_CHECKPOINT_EVERY: str(self.settings.policy.checkpoint.every),
            names.ENV_ROUND: str(round_),
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(world_size),
        }


def _plain(value: object) -> object:
    return str(value) if isinstance(value, pathlib.Path) else value


@contextlib.contextmanager
def pods(
    root: pathlib.Path,
    count: int,
    *,
    storage: pathlib.Path | str | None = None,
    behind: Mapping[int, int] = MappingProxyType({}),
    **changes: object,
) -> Iterator[list[Pod]]:
    """Start so many pods of one job, the first one with the coordinator; kill them afterwards.

    Those whose index is in ``behind`` listen on that port, and leave their own to a proxy.
    """
    port, network = free_port(), f"127.77.{os.getpid() % 200 + 1}"
    started: list[Pod] = []
    try:
        for index in range(count):
            settings = settings_of(
                root / f"pod-{index}",
                pod=f"demo-worker-{index}",
                replica_index=index,
                port=port,
                address=f"{network}.{index + 1}",
                coordinator_host=f"{network}.1",
                checkpoint_path=str(storage) if storage else None,
                nodes=count,
                max_nodes=count,
                **changes,
            )
            pod = Pod(settings, behind=behind.get(index))
            started.append(pod)
            pod.start()
        yield started
    finally:
        for pod in started:
            pod.kill()


def _log_into(path: pathlib.Path) -> None:
    """Everything into a file, warnings to standard error as well."""
    log = logging.getLogger("rover_kf")
    log.setLevel(logging.INFO)
    errors = logging.StreamHandler()
    errors.setLevel(logging.WARNING)
    for handler in (errors, logging.FileHandler(path)):
        log.addHandler(handler)


def run(spec: dict[str, Any], port: str) -> None:
    """Serve the pod that this describes, its peers on that port; for ever."""
    warnings.simplefilter("error")
    for key in ("volume_path", "token_home"):
        spec[key] = pathlib.Path(spec[key]) if spec[key] else None
    spec["policy"] = codec.decode(PolicySections, spec["policy"])
    settings = SidecarSettings(**spec)
    _log_into(settings.volume_path / LOG)
    asyncio.run(serve(settings, Told(settings.volume_path / "events"), int(port)))

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster as a whole: up, down, images, and what tests ask of it.

One cluster a machine: its bridge and namespaces have fixed names. ``/run`` holds a lock for changes
and a note of where the running cluster lives; users (test sessions) hold a shared lock, and only
the last one may take it down.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import json
import pathlib
import ssl
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence

from testcluster import binaries, cleanup, network, pki, releases, settings, training_operator
from testcluster.commands import run
from testcluster.control_plane import ControlPlane
from testcluster.errors import ClusterError
from testcluster.images import Images
from testcluster.layout import Image
from testcluster.node import Node
from testcluster.processes import Registry
from testcluster.releases import Release
from testcluster.waiting import until

NOTE = pathlib.Path("/run/rover-kf-testcluster.json")
_LOCK = pathlib.Path("/run/rover-kf-testcluster.lock")
_USERS = pathlib.Path("/run/rover-kf-testcluster.users")


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster of our own making.

    Args:
        root: its run directory.
        size: number of nodes.
        release: its Kubernetes.
        binaries: programs by name.
    """

    root: pathlib.Path
    size: int
    release: Release
    binaries: Mapping[str, pathlib.Path]

    @property
    def kubeconfig(self) -> pathlib.Path:
        """Of a cluster administrator."""
        return self.root / "admin.kubeconfig"

    @property
    def registry(self) -> Registry:
        """Records of its processes."""
        return Registry(self.root / "processes", self.root / "log")

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes in order."""
        numbers = range(1, self.size + 1)
        return tuple(Node(n, self.root, self.binaries, self.registry) for n in numbers)

    def node(self, name: str) -> Node:
        """The node of that name."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"no node {name!r}; there are {[node.name for node in self.nodes]}")

    def kubectl(self, *words: str, text: str | None = None, timeout: float = 120) -> str:
        """Run kubectl as the administrator and return its output."""
        command = [self.binaries["kubectl"], "--kubeconfig", self.kubeconfig, *words]
        return run(command, text=text, timeout=timeout)

    def get_raw(self, path: str, *, timeout: float = 30) -> bytes:
        """GET a path of the API server; a kubectl process for each look of a waiting test is dear.

        Raises:
            ClusterError: another status than 200, or no answer in time.
        """
        context = ssl.create_default_context(cafile=str(self.root / "pki" / "ca.crt"))
        pair = (self.root / "pki" / "admin.crt", self.root / "pki" / "admin.key")
        context.load_cert_chain(*pair)
        url = f"https://{network.address(0)}:6443{path}"
        try:
            with urllib.request.urlopen(url, context=context, timeout=timeout) as reply:
                return reply.read()
        except OSError as failure:
            raise ClusterError(f"GET {path}: {failure}") from failure

    def load(self, images: Sequence[Image]) -> None:
        """Import images on every running node, nodes side by side."""
        self._on_nodes(lambda node: node.load(images))

    def load_archives(self, archives: Sequence[pathlib.Path]) -> None:
        """Import archives that something else made."""
        self._on_nodes(lambda node: [node.load_archive(archive) for archive in archives])

    def _on_nodes(self, action: Callable[[Node], object]) -> None:
        with concurrent.futures.ThreadPoolExecutor(max_workers=self.size) as pool:
            work = [pool.submit(action, node) for node in self.nodes if node.running]
            for item in work:
                item.result()

    def start(self) -> None:
        """Start everything; returns when nodes are ready and the Training Operator serves."""
        self.root.mkdir(parents=True, exist_ok=True)
        (self.root / cleanup.MARKER).touch()
        images = Images(settings.cache()).cluster(self.binaries)
        network.create(self.size)
        pki.create(self.root, self.size)
        control_plane = ControlPlane(self.root, self.binaries, self.registry)
        with concurrent.futures.ThreadPoolExecutor(max_workers=self.size + 1) as pool:
            booted = [pool.submit(_boot, node, images) for node in self.nodes]
            manifest = pool.submit(training_operator.render, self.binaries["kubectl"], self.root)
            control_plane.start()
            joined = [
                pool.submit(_join_after, boot, node)
                for boot, node in zip(booted, self.nodes, strict=True)
            ]
            self.kubectl(
                "apply", "--server-side", "--force-conflicts", "-f", str(manifest.result())
            )
            for item in joined:
                item.result()
        self.wait_nodes()
        words = ("rollout", "status", f"deploy/{training_operator.DEPLOYMENT}", "--timeout=120s")
        self.kubectl("-n", training_operator.NAMESPACE, *words, timeout=150)

    def wait_nodes(self, *, seconds: float = 120) -> None:
        """Wait until every node is Ready.

        Raises:
            ClusterError: some were not in time.
        """
        wanted = {node.name for node in self.nodes}
        if not until(lambda: self.ready_nodes() == wanted, seconds=seconds):
            away = sorted(wanted - self.ready_nodes())
            raise ClusterError(f"not ready: {away}; read the logs below {self.root}/log")

    def ready_nodes(self) -> set[str]:
        """Names of the nodes that the API server calls Ready."""
        items = json.loads(self.get_raw("/api/v1/nodes"))["items"]
        return {item["metadata"]["name"] for item in items if _is_ready(item)}


def up(*, nodes: int = 3, root: pathlib.Path | None = None, report=print) -> Cluster:
    """Start a cluster, or return the one that runs; what a dead one left is removed first.

    Raises:
        ClusterError: another one runs elsewhere or of another version, or it does not start.
    """
    release = releases.find(settings.kubernetes())
    _refuse_other(current(), release, root)  # before minutes of compiling
    programs = binaries.build(release, report=report)
    with _exclusive():
        running = current()
        if running is not None:
            _refuse_other(running, release, root)
            return running
        place = (root or settings.run_directory()).resolve()
        cluster = Cluster(place, nodes, release, programs)
        cleanup.remove(cluster.root)
        NOTE.write_text(json.dumps({"root": str(cluster.root)}))
        cluster.start()
        made = {"nodes": nodes, "kubernetes": release.minor}
        (cluster.root / "cluster.json").write_text(json.dumps(made))
    return cluster


def _refuse_other(running: Cluster | None, release: Release, root: pathlib.Path | None) -> None:
    elsewhere = running and root is not None and running.root != root.resolve()
    if running and (elsewhere or running.release != release):
        told = f"a cluster of Kubernetes {running.release.version} runs in {running.root}"
        raise ClusterError(f"{told}; take it down first (make cluster-down)")


def down(root: pathlib.Path | None = None) -> None:
    """Remove the running cluster, or what a dead one left."""
    with _exclusive():
        cleanup.remove((root or _noted() or settings.run_directory()).resolve())
        NOTE.unlink(missing_ok=True)


def down_unless_used(root: pathlib.Path) -> bool:
    """Remove the cluster if nobody else is using it; whether it was removed."""
    with _USERS.open("w") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        down(root)
    return True


@contextlib.contextmanager
def using() -> Iterator[None]:
    """Say that the cluster is in use, so that another session does not take it down."""
    with _USERS.open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield


def current() -> Cluster | None:
    """The cluster that runs here, of whichever version; None if none does or it is not whole."""
    root = _noted()
    if root is None or not (root / "cluster.json").exists():
        return None
    made = json.loads((root / "cluster.json").read_text())
    release = releases.find(made.get("kubernetes", ""))
    cluster = Cluster(root, made["nodes"], release, binaries.build(release))
    server = cluster.registry.get("apiserver")
    return cluster if server is not None and server.alive() else None


def _noted() -> pathlib.Path | None:
    try:
        return pathlib.Path(json.loads(NOTE.read_text())["root"])
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def _exclusive() -> Iterator[None]:
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _boot(node: Node, images: Sequence[Image]) -> None:
    node.boot()
    node.load(images)


def _join_after(boot: concurrent.futures.Future[None], node: Node) -> None:
    boot.result()
    node.join()


def _is_ready(node: dict[str, object]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

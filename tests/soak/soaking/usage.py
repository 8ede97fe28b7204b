# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and descriptors of processes, and files in their places, sampled by a thread."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import time

from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.local import LocalCluster
from soaking.growth import Files, Sample

EVERY_SECONDS = 5.0
CLIENT, SIDECAR, LAUNCHER = "client", "sidecar", "launcher"


def sample(role: str, process: int) -> Sample | None:
    """Look at a process; None if it has just ended."""
    place = pathlib.Path(f"/proc/{process}")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        pages = int((place / "statm").read_text().split()[1])
        descriptors = sum(1 for _ in (place / "fd").iterdir())
        mib = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        return Sample(role, process, time.monotonic(), mib, descriptors)
    return None


def memory_folders(job: pathlib.Path) -> list[pathlib.Path]:
    """Every memory-backed volume that the job ever had, from the embedded cluster's own list."""
    return [pathlib.Path(line) for line in (job / "memory.list").read_text().splitlines()]


def count_files(state: pathlib.Path, job: pathlib.Path) -> Files:
    """Count the files of a job."""
    memory = [folder for folder in memory_folders(job) if folder.exists()]
    arenas = [
        sum(path.is_file() for path in folder.glob(f"{names.ARENA_DIR}/**/*")) for folder in memory
    ]
    volumes, logs = state / "volumes", job / "logs"
    own = [
        path
        for path in state.rglob("*")
        if path.is_file() and volumes not in path.parents and logs not in path.parents
    ]
    return Files(
        arena=max(arenas, default=0),
        memory=len(memory),
        storage=len(list(volumes.glob("*/*/step-*"))),
        state=len(own),
        logs=len(list(logs.iterdir())),
    )


class Sampler:
    """Samples until it is stopped.

    Args:
        cluster: runs the job in this process, which is the client's.
        key: of the job.
    """

    def __init__(self, cluster: LocalCluster, key: JobKey) -> None:
        self._cluster, self._key = cluster, key
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.samples: list[Sample] = []
        self.files: list[Files] = []

    def __enter__(self) -> Sampler:  # noqa: PYI034 - Self needs Python 3.11
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        watched = [(CLIENT, os.getpid())]
        containers = ((SIDECAR, names.SIDECAR_CONTAINER), (LAUNCHER, names.PYTORCH_CONTAINER))
        for pod in self._cluster.list_pods(self._key):
            for role, container in containers:
                found = self._cluster.processes(self._key, pod.name, container)
                watched += [(role, process) for process in found[:1]]
        seen = (sample(role, process) for role, process in watched)
        self.samples += [item for item in seen if item is not None]
        store = self._cluster.store
        with contextlib.suppress(FileNotFoundError):  # a pod's folders go while they are counted
            self.files.append(count_files(store.root, store.folder(self._key)))

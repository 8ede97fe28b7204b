# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Job objects as files: what the API server is to a cluster; used by ``cluster`` and ``operator``.

::

    <root>/lock                                   held while anything is written
    <root>/jobs/<namespace>/<kind>/<name>/job.json   the object, as an API server would give it
                                          pods.json  its pods, written by whoever runs it
                                          events.jsonl  logs/  work/  token/  memory.list
                                          owner.lock locked by the process that runs it
    <root>/volumes/<claim>                        persistentVolumeClaims; never removed here

Several processes may read and write at once: one runs a job while another asks or scales it. A
write is a read-modify-write under the lock, by rename, so a killed writer leaves whole objects, and
so does a full disk: what cannot be written raises ClusterUnavailable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import IO, Any

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.api.jobs import Event, JobKey, Pod


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A stored job."""

    manifest: dict[str, Any]
    folder: str
    """Where relative scripts of the manifest are found."""
    created_at: float
    finished_at: float | None = None
    deleting: bool = False

    @property
    def resource_version(self) -> str:
        """Changes with each write."""
        return str(self.manifest["metadata"]["resourceVersion"])


@dataclasses.dataclass(frozen=True, slots=True)
class _Pods:
    pods: tuple[Pod, ...]


class Store:
    """Objects below one root folder."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root

    def folder(self, key: JobKey) -> pathlib.Path:
        """Everything of one job but its claims."""
        return self.root / "jobs" / key.namespace / key.kind / key.name

    def jobs(self) -> tuple[JobKey, ...]:
        """All jobs, in order."""
        found = (self.root / "jobs").glob("*/*/*/job.json")
        return tuple(sorted(JobKey(p.parts[-4], p.parts[-2], p.parts[-3]) for p in found))

    def create(self, key: JobKey, record: Record) -> tuple[Record, IO[bytes]]:
        """Store a new job (else JobExists); the caller runs it until the lock is closed."""
        with self._locked():
            if (self.folder(key) / "job.json").exists():
                raise errors.JobExists(
                    f"{key} exists in {self.root}: delete it first (rover-kf delete {key.name}) "
                    "or choose another metadata.name; nothing was started"
                )
            shutil.rmtree(self.folder(key), ignore_errors=True)
            self.folder(key).mkdir(mode=0o700, parents=True)  # it has the job's variables
            (self.folder(key) / "token").mkdir()
            token = self.folder(key) / "token" / "token"
            token.touch(mode=0o600)
            token.write_text(secrets.token_urlsafe(32))
            owner = self.acquire_owner(key)
            if owner is None:  # its folder is new and the store is locked
                raise errors.ClusterUnavailable(f"{key} was taken over while it was created")
            return self._write(key, record), owner

    def read(self, key: JobKey) -> Record:
        """Read a job, or raise NoSuchJob."""
        try:
            data = json.loads((self.folder(key) / "job.json").read_text())
        except (FileNotFoundError, NotADirectoryError) as cause:
            raise errors.NoSuchJob(
                f"there is no {key} in {self.root}; rover-kf list shows what is there, "
                "rover-kf history list what was"
            ) from cause
        return Record(**data)

    def update(self, key: JobKey, change: Callable[[Record], Record]) -> Record:
        """Read, change and write one job as one step; raises as ``read``."""
        with self._locked():
            before = self.read(key)
            after = change(before)
            return before if after == before else self._write(key, after)

    def remove(self, key: JobKey) -> None:
        """Forget a job with its logs, work folders and memory-backed volumes."""
        with self._locked():
            self.sweep(key)
            shutil.rmtree(self.folder(key), ignore_errors=True)

    # -- pods and events, beside the object -------------------------------------------------------

    def write_pods(self, key: JobKey, pods: tuple[Pod, ...]) -> None:
        """Store the job's pods; a job that is gone is no error."""
        with contextlib.suppress(FileNotFoundError), translate_write_errors(self.root):
            _replace(self.folder(key) / "pods.json", codec.dumps(_Pods(pods)))

    def read_pods(self, key: JobKey) -> tuple[Pod, ...]:
        """The job's pods in replica order."""
        try:
            data = (self.folder(key) / "pods.json").read_bytes()
        except FileNotFoundError:
            return ()
        return codec.loads(_Pods, data).pods

    def read_log(self, key: JobKey, pod: Pod, container: str) -> str:
        """What a container of the pod has printed; nothing if it has not started."""
        file = self.folder(key) / "logs" / f"{pod.name}.{pod.uid[:8]}" / f"{container}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def add_event(self, key: JobKey, event: Event) -> None:
        """Append an event; a job that is gone is no error."""
        with contextlib.suppress(FileNotFoundError), self._locked():
            _append(
                self.folder(key) / "events.jsonl",
                codec.dumps(event) + b"\n",
                os.O_CREAT if (self.folder(key) / "job.json").exists() else 0,
            )

    def read_events(self, key: JobKey) -> tuple[Event, ...]:
        """Events, oldest first."""
        try:
            lines = (self.folder(key) / "events.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return ()
        events = (codec.loads(Event, line) for line in lines if line.endswith(b"}"))
        return tuple(sorted(events, key=lambda event: event.at))

    # -- who runs it -------------------------------------------------------------------------------

    def acquire_owner(self, key: JobKey) -> IO[bytes] | None:
        """Lock a job for running it; None if another living process does, or it is gone."""
        try:
            file = (self.folder(key) / "owner.lock").open("wb")
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def note_memory(self, key: JobKey, folder: pathlib.Path) -> None:
        """Note a memory-backed volume before it is made, so that it can be swept after a crash."""
        with self._locked():
            _append(self.folder(key) / "memory.list", f"{folder}\n".encode(), os.O_CREAT)

    def sweep(self, key: JobKey) -> None:
        """Remove what is left of the volumes that its pods had of their own."""
        with contextlib.suppress(FileNotFoundError):
            for line in (self.folder(key) / "memory.list").read_text().splitlines():
                if pathlib.Path(line).name.startswith("rkf-"):
                    shutil.rmtree(line, ignore_errors=True)
        shutil.rmtree(self.folder(key) / "work", ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with translate_write_errors(self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self.root / "lock").open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield

    def _write(self, key: JobKey, record: Record) -> Record:
        counter = self.root / "version"
        version = int(counter.read_text()) + 1 if counter.exists() else 1
        _replace(counter, str(version).encode())
        metadata = {**record.manifest["metadata"], "resourceVersion": str(version)}
        record = dataclasses.replace(record, manifest={**record.manifest, "metadata": metadata})
        data = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
        _replace(self.folder(key) / "job.json", json.dumps(data).encode())
        return record


@contextlib.contextmanager
def translate_write_errors(root: pathlib.Path) -> Iterator[None]:
    """Tell what the file system refuses; that something is not there is the caller's to know.

    Raises:
        ClusterUnavailable: the state folder cannot be written, as if an API server were away.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as cause:
        raise errors.ClusterUnavailable(
            f"the state folder {root} cannot be written: {cause.strerror}; make room there and let "
            "it be written, or name another one (ROVER_KF_STATE)"
        ) from cause


def _append(path: pathlib.Path, data: bytes, flags: int) -> None:
    """Add to a file, whole or not at all; the store is locked."""
    target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o644)
    try:
        before = os.fstat(target).st_size
        try:
            with open(target, "wb", closefd=False) as file:
                file.write(data)
        except OSError:
            os.ftruncate(target, before)
            raise
    finally:
        os.close(target)


def _replace(path: pathlib.Path, data: bytes) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The embedded cluster's face: ``protocol.Cluster`` on one machine.

Called by client, CLI, components and tests. Jobs run in threads and child processes of the
calling process and end with it; their objects, logs and claims stay in the state folder, where
other processes can read, scale and delete them.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import pathlib
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, final

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.jobs import Event, JobKey, Manifest, ObservedJob, Pod
from rover_kf.cluster import sidecar_request
from rover_kf.cluster.local import local_admission
from rover_kf.cluster.local.job_conditions import merge, new_record, to_observed_job
from rover_kf.cluster.local.operator import Operator, clean_orphans
from rover_kf.cluster.local.settings import Timing, base_environment, memory_folder, write_shims
from rover_kf.cluster.local.store import Record, Store, translate_write_errors
from rover_kf.cluster.protocol import Cluster

_PROTECTED = ("name", "namespace", "uid", "creationTimestamp", "resourceVersion")


@final
class LocalCluster(Cluster):
    """Runs PyTorchJobs on this machine as the Training Operator would.

    **Usage**::

        with LocalCluster(pathlib.Path("state")) as cluster:
            job = cluster.create_job(manifest, folder=pathlib.Path("where/train.py/is"))

    Leaving it ends everything that it started; a process that is killed takes them with it.
    The state folder has objects, logs and claims; it is made if it is not there.
    """

    def __init__(self, state: pathlib.Path | str, timing: Timing | None = None) -> None:
        self.store = Store(pathlib.Path(state).absolute())
        self._timing = timing or Timing()
        self._operator: Operator | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> LocalCluster:
        clean_orphans(self.store)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every pod (SIGTERM, a short grace, SIGKILL) and give everything back."""
        with self._lock:
            operator, self._operator = self._operator, None
        if operator is not None:
            atexit.unregister(self.close)
            operator.close()

    # -- jobs --------------------------------------------------------------------------------------

    def create_job(self, manifest: Manifest, *, folder: pathlib.Path | None = None) -> ObservedJob:
        """Create a job and run it in this process; relative scripts are found in the folder.

        Raises:
            JobExists: one of that name is there, running or finished.
            ManifestError: it cannot run here; nothing was started.
            ClusterUnavailable: the state folder cannot be written.
        """
        place = (folder or pathlib.Path()).absolute()
        local_admission.validate(manifest, place)
        key, record = new_record(manifest, place, time.time())
        operator = self._running_operator()
        record, owner = self.store.create(key, record)
        operator.run(key, owner)
        return to_observed_job(record)

    def get_job(self, key: JobKey) -> ObservedJob:
        """Read one job."""
        return to_observed_job(self.store.read(key))

    def list_jobs(self, namespace: str | None = None) -> tuple[ObservedJob, ...]:
        """Labelled jobs of a namespace, or of all with None."""
        found = []
        for key in self.store.jobs():
            if namespace in (None, key.namespace):
                with contextlib.suppress(errors.NoSuchJob):  # removed since it was listed
                    found.append(self.get_job(key))
        return tuple(job for job in found if job.labels.get(names.INJECT_LABEL) == "true")

    def patch_job(
        self, key: JobKey, patch: Mapping[str, Any], *, resource_version: str | None = None
    ) -> ObservedJob:
        """Merge patch of all but status and identity; ManifestError if it could not run here."""
        inside = (patch.get("metadata") or {}).get("resourceVersion")
        wanted = {value for value in (resource_version, inside) if value is not None}

        def change(record: Record) -> Record:
            if wanted - {record.resource_version}:
                raise errors.Conflict(
                    f"{key} is at version {record.resource_version}, not {wanted.pop()}: "
                    "read it again and retry"
                )
            before = record.manifest
            body = {name: value for name, value in patch.items() if name != "status"}
            manifest = merge(before, body)
            kept = {n: before["metadata"][n] for n in _PROTECTED if n in before["metadata"]}
            manifest["metadata"] = {**manifest["metadata"], **kept}
            local_admission.validate(manifest, pathlib.Path(record.folder))
            return dataclasses.replace(record, manifest=manifest)

        record = self.store.update(key, change)
        self._wake()
        return to_observed_job(record)

    def delete_job(self, key: JobKey) -> None:
        """Delete the job; its pods end after it. Deleting a job that is not there is no error."""
        try:
            self.store.update(key, lambda record: dataclasses.replace(record, deleting=True))
        except errors.NoSuchJob:
            return
        if self._operator is not None and self._operator.is_running(key):
            self._wake()
            return
        owner = self.store.acquire_owner(key)
        if owner is not None:  # nobody runs it; else whoever does removes it
            self.store.remove(key)
            owner.close()

    # -- pods --------------------------------------------------------------------------------------

    def list_pods(self, key: JobKey) -> tuple[Pod, ...]:
        """The job's pods in replica order."""
        return self.store.read_pods(key)

    def delete_pod(self, key: JobKey, pod: str) -> None:
        """Delete a pod of a job that this process runs; the operator makes another."""
        found = self._operator.pod(key, pod) if self._operator else None
        if found is not None:
            found.delete()
            self._wake()
        elif any(item.name == pod for item in self.list_pods(key)):
            raise errors.ClusterUnavailable(f"{key} is run by another process: delete {pod} there")

    def force_delete_pod(self, key: JobKey, pod: Pod) -> None:
        """Delete a pod; there is but one machine, which is there as long as this process."""
        self.delete_pod(key, pod.name)

    def processes(self, key: JobKey, pod: str, container: str) -> tuple[int, ...]:
        """Process ids of a container that this process runs, its command first."""
        found = self._operator.pod(key, pod) if self._operator else None
        return found.pids(container) if found else ()

    def read_log(self, key: JobKey, pod: str, container: str, *, tail: int | None = None) -> str:
        """What the container printed so far (the last ``tail`` lines)."""
        found = next((item for item in self.list_pods(key) if item.name == pod), None)
        if found is None:
            raise errors.NoSuchJob(f"{key} has no pod {pod}")
        text = self.store.read_log(key, found, container)
        return text if tail is None else "".join(text.splitlines(keepends=True)[-tail:])

    def call_coordinator(
        self, key: JobKey, method: str, path: str, body: object = None, *, pod: Pod | None = None
    ) -> bytes:
        """One HTTP request to the job's coordinator, or a pod's; body is encoded by api.codec."""
        asked = pod or self._first_pod(key)
        token = (self.store.folder(key) / "token" / "token").read_text()
        data = None if body is None else codec.dumps(body)
        return sidecar_request.send(key, asked, method, path, data, token=token)

    def cordon_node(self, name: str, reason: str) -> None:
        """Refuse it: nothing could run anywhere else."""
        raise errors.InputError(f"{name} is the one machine that there is, and stays ({reason})")

    # -- events ------------------------------------------------------------------------------------

    def emit(self, key: JobKey, event: Event) -> None:
        """Put an Event on the job; a job that is gone is no error."""
        stamped = event if event.at else dataclasses.replace(event, at=time.time())
        self.store.add_event(key, stamped)

    def list_events(self, key: JobKey) -> tuple[Event, ...]:
        """Events of the job, oldest first, whoever wrote them."""
        return self.store.read_events(key)

    def _first_pod(self, key: JobKey) -> Pod:
        """The one with the coordinator: a master, else worker 0."""
        pods = sorted(self.list_pods(key), key=lambda pod: (pod.replica_type, pod.replica_index))
        if not pods:
            raise errors.ClusterUnavailable(f"{key} has no pod yet: retry when it runs")
        return pods[0]

    def _running_operator(self) -> Operator:
        with self._lock:
            if self._operator is None:
                root = self.store.root
                with translate_write_errors(root):
                    shims = write_shims(root / "bin")
                memory, base = memory_folder(root / "memory"), base_environment(shims)
                self._operator = Operator(self.store, self._timing, memory, base)
                self._operator.start()
                atexit.register(self.close)
            return self._operator

    def _wake(self) -> None:
        if self._operator is not None:
            self._operator.wake()

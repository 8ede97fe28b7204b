# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The loop that makes a job's pods be what its object says, by the Training Operator's rules.

Level-triggered: each pass reads the stored object and compares it with the pods. One thread for
all jobs that this process runs, one more for each pod. Used by ``cluster``.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import threading
import time
import uuid
from collections.abc import Mapping
from typing import IO

from rover_kf import errors
from rover_kf.api.jobs import Event, JobKey, Pod
from rover_kf.cluster.local import local_admission, pod_spec
from rover_kf.cluster.local.job_conditions import (
    RETRYABLE,
    JobCondition,
    derive_condition,
    exit_code,
    with_condition,
    with_counts,
)
from rover_kf.cluster.local.job_runtime import JobRuntime, NetworkLease
from rover_kf.cluster.local.pod import LocalPod
from rover_kf.cluster.local.pod_spec import PodSite, build_pod_spec, restart_policy
from rover_kf.cluster.local.settings import Timing
from rover_kf.cluster.local.store import Record, Store

SOURCE = "pytorchjob-controller"
"""Who an operator's Events are from, as in a cluster."""


class Operator:
    """An operator of a store's jobs; ``base`` is the environment instead of an image's."""

    def __init__(
        self, store: Store, timing: Timing, memory: pathlib.Path, base: Mapping[str, str]
    ) -> None:
        self._store, self._timing = store, timing
        self._memory, self._base = memory, base
        self._runs: dict[JobKey, JobRuntime] = {}
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="operator", daemon=True)

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()

    def wake(self) -> None:
        """Look again at once."""
        self._wake.set()

    def run(self, key: JobKey, owner: IO[bytes]) -> None:
        """Run a stored job from now on."""
        masters = pod_spec.replica_counts(self._store.read(key).manifest).get("master", 0)
        with self._lock:
            run = JobRuntime(key, owner, NetworkLease(key.name, masters), started_at=time.time())
            self._runs[key] = run
        self.wake()

    def is_running(self, key: JobKey) -> bool:
        """Whether this process runs the job."""
        return key in self._runs

    def pod(self, key: JobKey, name: str) -> LocalPod | None:
        """A pod of a job that this process runs."""
        with self._lock:
            run = self._runs.get(key)
            pods = list(run.pods.values()) if run else []
        return next((pod for pod in pods if pod.spec.name == name), None)

    def close(self) -> None:
        """End every pod and stop; jobs that had not finished count as failed."""
        self._closing = True
        self.wake()
        self._thread.join()
        pods = [pod for run in self._runs.values() for pod in run.pods.values()]
        for pod in pods:
            pod.delete(self._timing.closing_grace)
        for pod in pods:
            pod.join()
        for run in self._runs.values():
            self._abandon(run)
        self._runs.clear()

    # -- the loop ----------------------------------------------------------------------------------

    def _loop(self) -> None:
        while not self._closing:
            self._wake.clear()
            with self._lock:
                runs = list(self._runs.values())
            for run in runs:
                self._try(run)
            self._wake.wait(self._timing.resync)

    def _try(self, run: JobRuntime) -> None:
        try:
            self._reconcile_or_fail(run)
        except errors.ClusterUnavailable as refusal:
            run.seen = None  # nothing of that look counts: the next one may be written
            run.warn(f"{run.key}: {refusal}; its pods go on, and it is tried again")
        else:
            run.warned = ""

    def _reconcile_or_fail(self, run: JobRuntime) -> None:
        try:
            self._reconcile(run)
        except errors.ClusterUnavailable:
            raise
        except (errors.RoverError, OSError) as cause:
            self._fail(run, f"the embedded cluster cannot run it: {cause}")

    def _reconcile(self, run: JobRuntime) -> None:
        record = self._store.read(run.key)
        run.drop_gone_pods()
        views = tuple(pod.view() for pod in run.pods.values())
        seen = (record.resource_version, record.deleting, views)
        if seen == run.seen and not run.needs_resync(record):
            return  # looked at already, and nothing followed from it
        run.seen = seen
        suspended = bool((record.manifest["spec"].get("runPolicy") or {}).get("suspend"))
        if record.deleting:
            run.delete_pods()
            if not run.pods:
                self._forget(run)
                return
        elif record.finished_at is not None:
            run.clean_up(record, self._timing)
        elif suspended:
            run.delete_pods()
            run.started_at = time.time()
            self._apply_condition(run, JobCondition("Suspended", "suspended"))
        else:
            self._sync_pods(run, record)
            pods = [pod.view() for pod in run.pods.values()]
            age = time.time() - run.started_at
            concluded = derive_condition(record.manifest, pods, age=age)
            self._apply_condition(run, concluded)
            if concluded.by_limit:
                run.end_pods()
        self._publish_pods(run)

    def _sync_pods(self, run: JobRuntime, record: Record) -> None:
        """Make missing pods, delete surplus ones and those whose failure asks for another."""
        for kind, replica in record.manifest["spec"][local_admission.SPECS].items():
            replica_type, wanted = kind.lower(), int(replica.get("replicas", 1))
            for (owner, index), pod in list(run.pods.items()):
                view, surplus = pod.view(), index >= wanted
                if owner != replica_type or view.deleting:
                    continue
                failed = view.phase == "Failed" and _replaceable(view, restart_policy(replica))
                if surplus or failed:
                    self._emit(run, "SuccessfulDeletePod", f"Deleted pod: {pod.spec.name}")
                    pod.delete()
            for index in range(wanted):
                if (replica_type, index) not in run.pods:
                    self._create_pod(run, record, replica_type, index)

    def _create_pod(self, run: JobRuntime, record: Record, replica_type: str, index: int) -> None:
        namespace = run.key.namespace
        site = PodSite(
            root=self._store.root,
            job=self._store.folder(run.key),
            folder=pathlib.Path(record.folder),
            memory=self._memory,
            base=self._base,
            resolve=functools.partial(run.lease.resolve, namespace=namespace),
            grace=self._timing.grace,
        )
        address, uid = run.lease.address(replica_type, index), str(uuid.uuid4())
        plan = build_pod_spec(record.manifest, site, replica_type, index, uid=uid, address=address)
        for folder in plan.volumes.memory:
            self._store.note_memory(run.key, folder)
        pod = LocalPod(plan, self._timing, self.wake)
        run.pods[replica_type, index] = pod
        pod.start()
        self._emit(run, "SuccessfulCreatePod", f"Created pod: {plan.name}")

    def _apply_condition(self, run: JobRuntime, condition: JobCondition) -> None:
        views = [pod.view() for pod in run.pods.values()]

        def change(record: Record) -> Record:
            return with_counts(with_condition(record, condition), views)

        known = self._store.read(run.key)
        news = len(_conditions(change(known))) != len(_conditions(known))
        if condition.type and news and condition != run.emitted:
            failed = condition.type in ("Failed", "Restarting")
            # First: whoever sees the job ended and then asks what was told finds it.
            self._emit(run, condition.reason, condition.message, warning=failed)
            run.emitted = condition
        self._publish_pods(
            run
        )  # as well: its pods are at least as far as what was concluded from them
        self._store.update(run.key, change)
        run.emitted = None

    # -- ends --------------------------------------------------------------------------------------

    def _fail(self, run: JobRuntime, message: str) -> None:
        if run.key in self._store.jobs():
            failed = JobCondition("Failed", message)
            self._store.update(run.key, lambda record: with_condition(record, failed))
        run.delete_pods()

    def _abandon(self, run: JobRuntime) -> None:
        """The embedded cluster is left: what is not finished has failed, deleted jobs go."""
        try:
            if run.key not in self._store.jobs():
                return
            if self._store.read(run.key).deleting:
                self._store.remove(run.key)
            else:
                self._publish_pods(run)
                self._store.update(run.key, mark_failed)
                self._store.sweep(run.key)
        except errors.ClusterUnavailable as refusal:
            run.warn(f"the end of {run.key} is not noted: {refusal}")
        finally:
            run.close()

    def _forget(self, run: JobRuntime) -> None:
        self._store.remove(run.key)
        run.close()
        with self._lock:
            del self._runs[run.key]

    # -- what others see ---------------------------------------------------------------------------

    def _publish_pods(self, run: JobRuntime) -> None:
        views = tuple(run.pods[place].view() for place in sorted(run.pods))
        if views != run.shown:
            self._store.write_pods(run.key, views)
            run.shown = views

    def _emit(self, run: JobRuntime, reason: str, message: str, *, warning: bool = False) -> None:
        event = Event(reason, message, warning=warning, at=time.time(), source=SOURCE)
        self._store.add_event(run.key, event)


def mark_failed(record: Record) -> Record:
    """A job whose process has ended: failed, unless it had finished before."""
    message = "the process that ran it ended; durable checkpoints are kept: delete it and run again"
    return with_condition(record, JobCondition("Failed", message))


def _conditions(record: Record) -> list[tuple[str, str]]:
    conditions = (record.manifest.get("status") or {}).get("conditions") or []
    return [(item["type"], item["status"]) for item in conditions]


def _replaceable(pod: Pod, policy: str) -> bool:
    if policy == "ExitCode":
        code = exit_code(pod)
        return code is not None and code >= RETRYABLE
    return policy != "Never"


def clean_orphans(store: Store) -> None:
    """Settle jobs whose process was killed: they have failed, their memory is swept."""
    for key in store.jobs():
        owner = store.acquire_owner(key)
        if owner is None:
            continue
        # The process that ran it may have removed it since it was listed.
        with owner, contextlib.suppress(errors.NoSuchJob):
            if store.read(key).deleting:
                store.remove(key)
            else:
                store.update(key, mark_failed)
                store.sweep(key)

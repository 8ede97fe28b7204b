# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""RoverClient: one object for a job's whole life, embedded or on Kubernetes.

Called by CLI, notebooks and components. Every method reads afresh; nothing is cached.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import final

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.decisions import Recommendation
from rover_kf.api.jobs import Event, JobKey, Manifest, ObservedJob
from rover_kf.api.records import RunRecord
from rover_kf.api.status import CoordinatorStatus, ScaleRequest
from rover_kf.client import admission, bounds, manifests, outcome, settings
from rover_kf.client.progress import Progress, carried, progress_of
from rover_kf.client.reconciling import Background
from rover_kf.client.rehearsing import DryRun, rehearse
from rover_kf.cluster.local import LocalCluster
from rover_kf.cluster.protocol import Cluster
from rover_kf.history import opening
from rover_kf.injection.inject import Injected, inject
from rover_kf.injection.policy import RoverPolicy
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.price import PriceTable
from rover_kf.recommender.recommend import recommend
from rover_kf.reconcilers import policies

POLL_SECONDS = 0.2
NO_EVENTS = 1 << 62
"""A sequence that no event has: asks for a status without any."""
SETTLE_SECONDS = 10.0
"""How long a finished job's record is waited for; the history may be away."""


@final
class RoverClient:
    """Submits, watches, scales and reports jobs.

    **Usage**::

        with RoverClient() as rover:                      # embedded: jobs end with the block
            job = rover.submit("manifests/samples/digits.yaml")
            rover.wait(job.key, until="Succeeded", timeout=120)
            rover.report(job.key, "report.html")

    Args:
        cluster: where jobs are; an embedded one in the settings' state folder by default.
        told: settings; the environment's by default.
    """

    def __init__(
        self, cluster: Cluster | None = None, *, told: settings.ClientSettings | None = None
    ) -> None:
        self.settings = told or settings.read()
        self.cluster: Cluster = cluster or LocalCluster(self.settings.state)
        self.history = opening.at(self.settings.history)
        self._background: Background | None = None

    @classmethod
    def at(
        cls, place: str = "", *, state: str = "", history: str = "", context: str = ""
    ) -> RoverClient:
        """A client by names alone, for command lines and pipeline steps.

        Args:
            place: ``embedded`` or ``kubernetes``; empty: what ROVER_KF_ON says.
            state: folder of embedded jobs; empty: the settings'.
            history: SQLAlchemy URL; empty: the settings'.
            context: of the kubeconfig; empty: in a pod its own cluster, else the current one.

        Raises:
            InputError: there is no such place.
            ClusterUnavailable: there is no cluster to talk to.
        """
        told = settings.read(state=pathlib.Path(state) if state else None).over(place, history)
        if told.place == "embedded":
            return cls(told=told)
        # Only here, so that embedded work starts without loading the Kubernetes client.
        from rover_kf.cluster import kubernetes_connection  # noqa: PLC0415

        return cls(kubernetes_connection.from_environment(context=context or None), told=told)

    def __enter__(self) -> RoverClient:
        if isinstance(self.cluster, LocalCluster):
            self.cluster.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End embedded jobs and everything that this object has started."""
        if self._background is not None:
            self._background.close()
            self._background = None
        if isinstance(self.cluster, LocalCluster):
            self.cluster.close()
        self.history.close()

    # -- before a run ------------------------------------------------------------------------------

    def patch(self, given: Manifest | pathlib.Path | str) -> Injected:
        """Inject a job without submitting it.

        Raises:
            InputError: it cannot be used; the message names file, key, value and what is allowed.
        """
        return self._inject(manifests.load(given))

    def recommend(
        self,
        given: Manifest | pathlib.Path | str,
        *,
        dry_run: DryRun | None = None,
        constraints: Constraints | None = None,
        prices: PriceTable | None = None,
        parameters: float | None = None,
    ) -> Recommendation:
        """Sizes for a job from the history of its like, a dry run, else from its manifest.

        Args:
            given: mapping, path, or text of YAML or JSON.
            dry_run: how its script is tried on this machine; None: it is not.
            constraints: what may be had at most, beside quotas and nodes, which are looked up.
            prices: what an hour of each costs.
            parameters: of the model, where neither history nor dry run tell of it.

        Raises:
            InputError: the manifest cannot be used, or its script made no step.
        """
        source = manifests.load(given)
        namespace = source.job["metadata"].get("namespace") or "default"
        return recommend(
            source.job,
            self.history,
            profile=None if dry_run is None else rehearse(source, dry_run),
            constraints=bounds.bounded(self.cluster, namespace, constraints),
            prices=prices,
            parameters=parameters,
            source=source.name,
        )

    def submit(self, given: Manifest | pathlib.Path | str, *, inject: bool = True) -> ObservedJob:
        """Create a job; embedded it runs, and is looked after, in this process.

        Where ``memory.max`` lets the memory limit be raised, the job starts with the one that runs
        alike were raised to.

        Args:
            given: mapping, path, or text of YAML or JSON.
            inject: patch it first; a job that is patched already is not changed by that.

        Raises:
            InputError: refused before anything started.
            JobExists: a job of that name is there; it is left alone.
        """
        source = manifests.load(given)
        if inject:
            source = self._fed(source)
        injected = self._inject(source) if inject else Injected(dict(source.job))
        if not isinstance(self.cluster, LocalCluster):
            job = self.cluster.create_job(injected.manifest)
        else:
            job = self.cluster.create_job(injected.manifest, folder=source.folder)
        for event in injected.warnings:
            self.cluster.emit(job.key, event)
        if inject and isinstance(self.cluster, LocalCluster):
            self.look_after(job.key)
        return job

    # -- while it runs -----------------------------------------------------------------------------

    def get(self, key: JobKey | str) -> ObservedJob:
        """Read one job; a name alone is a PyTorchJob in the namespace ``default``."""
        return self.cluster.get_job(_key(key))

    def list(self, namespace: str | None = None) -> tuple[ObservedJob, ...]:
        """Labelled jobs of a namespace, or of all."""
        return self.cluster.list_jobs(namespace)

    def wait(
        self, key: JobKey | str, until: str = "Succeeded", timeout: float | None = None
    ) -> ObservedJob:
        """Wait until the job's phase is ``until``.

        Raises:
            JobFailed: it ended otherwise; the message holds the verdict.
            StillRunning: it did not get there in ``timeout`` seconds; it goes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            job = self.get(key)
            if job.phase == until:
                self._settle(job)
                return job
            if job.finished:
                self._settle(job)
                raise errors.JobFailed(f"{job.key} is {job.phase}: {self.verdict(job.key)}")
            if deadline is not None and time.monotonic() > deadline:
                raise errors.StillRunning(
                    f"{job.key} is {job.phase or 'new'}, not {until}, after {timeout} s; it goes on"
                )
            time.sleep(POLL_SECONDS)

    def status(self, key: JobKey | str, *, after: int = 0) -> CoordinatorStatus:
        """What the job's coordinator knows; events with a sequence above ``after``.

        Raises:
            ClusterUnavailable: it does not answer (not started yet, ended, being replaced).
        """
        path = f"{names.PATH_STATUS}?after={after}"
        answer = self.cluster.call_coordinator(_key(key), "GET", path)
        return codec.loads(CoordinatorStatus, answer)

    def progress(self, key: JobKey | str) -> Progress:
        """Where the job stands; never fails because the coordinator is silent."""
        try:
            status = self.status(key, after=NO_EVENTS)
        except errors.ClusterUnavailable:
            status = None
        job = self.get(key)
        return progress_of(job, self.cluster.list_pods(job.key), status)

    def watch(self, key: JobKey | str, *, every: float = 0.5) -> Iterator[Progress]:
        """Progress every so many seconds, with what was told meanwhile, until the job's end."""
        seen: set[Event] = set()
        last: Progress | None = None
        while True:
            progress = self.progress(key)
            if progress.finished:
                self._settle(self.get(key))
            fresh = tuple(event for event in self.events(key) if event not in seen)
            seen.update(fresh)
            # The coordinator goes before the job does: what it said last still stands.
            last = dataclasses.replace(carried(progress, last), events=fresh)
            yield last
            if last.finished:
                return
            time.sleep(every)

    def events(self, key: JobKey | str) -> tuple[Event, ...]:
        """Events of the job, oldest first."""
        return self.cluster.list_events(_key(key))

    def logs(
        self,
        key: JobKey | str,
        pod: str | None = None,
        *,
        container: str = names.PYTORCH_CONTAINER,
        tail: int | None = None,
    ) -> str:
        """What a container of a pod (the first by default) printed so far.

        Raises:
            JobNotFound: there is no such pod.
        """
        pods = self.cluster.list_pods(self.get(key).key)
        if pod is None and not pods:
            raise errors.JobNotFound(f"{key} has no pod yet")
        return self.cluster.read_log(_key(key), pod or pods[0].name, container, tail=tail)

    def scale(self, key: JobKey | str, workers: int) -> ObservedJob:
        """Set Worker replicas; the world re-forms.

        No step is lost where one ends within seconds: a pod that goes lets the world drain first.

        Raises:
            InputError: outside of what the job allows.
        """
        job = self.get(key)
        low, high = admission.bounds(job.manifest)
        if not low <= workers <= high:
            raise errors.InputError(
                f"{job.key}: {workers} worker replicas; allowed: {low} to {high} "
                "(scaling.min and scaling.max, else spec.elasticPolicy)"
            )
        request = ScaleRequest(job.nodes - job.replicas.get("worker", 0) + workers, "by hand")
        with contextlib.suppress(errors.ClusterUnavailable):
            # Not running yet, or not to be reached from here: then it sees who comes and goes.
            self.cluster.call_coordinator(job.key, "POST", names.PATH_SCALE, request)
        patch = {"spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}}}
        # Whatever else changes on the job meanwhile, this is what its owner wants.
        return self.cluster.patch_job(job.key, patch)

    def delete(self, key: JobKey | str) -> None:
        """Delete the job with its pods; checkpoints on claims stay."""
        self.cluster.delete_job(_key(key))

    def look_after(self, key: JobKey) -> None:
        """Run the reconcilers for a job in this process until ``close``."""
        if self._background is None:
            here = isinstance(self.cluster, LocalCluster)
            policy_of = policies.embedded if here else policies.of
            self._background = Background(self.cluster, self.history, policy_of)
        self._background.add(key)

    # -- after a run -------------------------------------------------------------------------------

    def record(self, key: JobKey | str) -> RunRecord | None:
        """What the history keeps of the job's newest run."""
        return outcome.newest_run(self.history, _key(key))

    def report(self, key: JobKey | str, path: pathlib.Path | str) -> pathlib.Path:
        """Write the run's report, one self-contained HTML file.

        Raises:
            JobNotFound: the history has no run of that job.
        """
        wanted, target = _key(key), pathlib.Path(path)
        try:
            following = recommend(self.get(wanted).manifest, self.history)
        except errors.RoverError:  # deleted, or not ours: the run is still told
            following = None
        return outcome.write_report(self.history, wanted, target, following)

    def verdict(self, key: JobKey | str) -> str:
        """Why a job ended as it did, in the best words there are."""
        return outcome.verdict(self.get(key), self.record(key))

    # ----------------------------------------------------------------------------------------------

    def _inject(self, source: manifests.Source) -> Injected:
        embedded = isinstance(self.cluster, LocalCluster)
        if embedded:
            admission.check_storage(source)
        return inject(
            source.job,
            settings=self.settings.injection,
            source=source.name,
            allow_unmounted=embedded,
        )

    def _fed(self, source: manifests.Source) -> manifests.Source:
        """With the memory that runs alike had to be given, as far as the job's policy goes."""
        annotations = source.job["metadata"].get("annotations") or {}
        most = RoverPolicy.from_annotations(annotations, source=source.name).memory.max
        if most is None:
            return source
        found = recommend(source.job, self.history, source=source.name)
        return manifests.fed(source, found, most=most)

    def _settle(self, job: ObservedJob) -> None:
        """Have the end of a job recorded before anyone asks the history for it."""
        if self._background is not None:
            self._background.settle(job.key, SETTLE_SECONDS)


def _key(key: JobKey | str) -> JobKey:
    return key if isinstance(key, JobKey) else JobKey("default", key)

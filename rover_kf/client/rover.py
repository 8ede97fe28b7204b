# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""RoverClient: one object for a job's whole life, embedded or on Kubernetes.

Nothing is cached. Longer bodies are functions of a Connection in submission.py, script_jobs.py and
patches.py.
"""

# Long because each public method of RoverClient has its documented arguments here; longer bodies
# are in other modules.

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import pathlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, final

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.decisions import Recommendation
from rover_kf.api.jobs import Event, JobKey, Manifest, ObservedJob, Pod
from rover_kf.api.records import RunRecord
from rover_kf.api.status import CoordinatorStatus, ScaleRequest
from rover_kf.client import explain, patches, results, settings, submission
from rover_kf.client.connection import Connection
from rover_kf.client.explain import Explanation
from rover_kf.client.job_progress import Progress, carry_over, make_progress, with_final_record
from rover_kf.client.manifests import ManifestSource, to_key
from rover_kf.client.patches import POLL_SECONDS, SuspendResult
from rover_kf.client.progress_display import ProgressDisplay
from rover_kf.client.script_jobs import DryRun, dry_run_script, script_of, start
from rover_kf.client.script_manifest import Resources, TrainingSpec, parse_replicas, unique_name
from rover_kf.client.submission import Given, KubeflowClient, cluster_of
from rover_kf.client.views import EventList, JobHistory, JobList, LogView
from rover_kf.cluster.protocol import Cluster, fetch_status
from rover_kf.doctor import Diagnosis, diagnose
from rover_kf.doctor.api_query import ApiClient
from rover_kf.injection.inject import Injected
from rover_kf.job_kinds import registry
from rover_kf.job_kinds.registry import kind_of, kind_of_job
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.price import PriceTable
from rover_kf.recommender.recommend import recommend


@final
class RoverClient:
    """Submits, watches, scales and reports jobs.

    **Usage**::

        with RoverClient() as rover:                      # embedded: jobs end with the block
            job = rover.submit("manifests/samples/digits.yaml")
            rover.wait(job.key, until="Succeeded", timeout=120)
            rover.report(job.key, "report.html")

    Args:
        cluster: where jobs are, or a TrainingClient of kubeflow's that is connected with it; an
            embedded one in the settings' state folder by default.
        config: settings; the environment's by default.
    """

    def __init__(
        self,
        cluster: Cluster | KubeflowClient | None = None,
        *,
        config: settings.ClientSettings | None = None,
    ) -> None:
        self.namespace = "default"
        self.job_kind: str = names.PYTORCHJOB
        """Both of jobs that are named without one by kubeflow's verbs."""
        if isinstance(cluster, KubeflowClient):
            self.namespace, self.job_kind = cluster.namespace, cluster.job_kind
            cluster = cluster_of(cluster)
        connection = Connection.open(cluster, config or settings.read())
        self._connection = connection
        self.settings, self.history = connection.settings, connection.history
        self.cluster: Cluster = connection.cluster

    @classmethod
    def connect(
        cls, cluster: str = "", *, state: str = "", history: str = "", context: str = ""
    ) -> RoverClient:
        """A client by names alone, for command lines and pipeline steps.

        Args:
            cluster: ``embedded`` or ``kubernetes``; empty: what ROVER_KF_ON says.
            state: folder of embedded jobs; empty: the settings'.
            history: SQLAlchemy URL; empty: the settings'.
            context: of the kubeconfig; empty: in a pod its own cluster, else the current one.

        Raises:
            InputError: there is no such place.
            ClusterUnavailable: there is no cluster to talk to.
        """
        told = settings.read(state=pathlib.Path(state) if state else None).with_overrides(
            cluster, history
        )
        if told.cluster == "embedded":
            return cls(config=told)
        # Only here, so that embedded work starts without loading the Kubernetes client.
        from rover_kf.cluster.kubernetes import config  # noqa: PLC0415

        return cls(config.from_environment(context=context or None), config=told)

    def __enter__(self) -> RoverClient:
        if self._connection.embedded:
            self._connection.embedded.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def api(self) -> ApiClient:
        """The API server, for what is no job.

        Raises:
            InputError: jobs are embedded, there is none.
        """
        return self._connection.api

    def close(self) -> None:
        """End embedded jobs and everything that this object has started."""
        self._connection.close()

    def look_after(self, key: JobKey) -> None:
        """Run the reconcilers for a job in this process until ``close``."""
        self._connection.reconcilers.add(key)

    def settle(self, key: JobKey) -> None:
        """Have the end of a job recorded before anyone asks the history for it."""
        self._connection.reconcilers.wait_recorded(key)

    def patch(self, given: Given) -> Injected:
        """Inject a job without submitting it.

        Raises:
            InputError: it cannot be used; the message names file, key, value and what is allowed.
        """
        return submission.patch(self._connection, submission.read(given))

    def recommend(
        self,
        given: Given,
        *,
        dry_run: DryRun | None = None,
        constraints: Constraints | None = None,
        prices: PriceTable | None = None,
        parameters: float | None = None,
        trained: float | None = None,
    ) -> Recommendation:
        """Sizes for a job from the history of its like, a dry run, else from its manifest.

        Args:
            given: mapping, model of kubeflow's client, path, or text of YAML or JSON.
            dry_run: how its script is tried on this machine; None: it is not.
            constraints: what may be had at most, beside quotas and nodes, which are looked up.
            prices: what an hour of each costs.
            parameters: of the model, where neither history nor dry run tell of it.
            trained: of them, those that are trained; None: all (fewer is LoRA or the like).

        Raises:
            InputError: the manifest cannot be used, or its script made no step.
        """
        source = submission.read(given)
        namespace = source.job["metadata"].get("namespace") or "default"
        return recommend(
            source.job,
            self.history,
            profile=None if dry_run is None else dry_run_script(source, dry_run),
            constraints=submission.apply_cluster_bounds(self.cluster, namespace, constraints),
            prices=prices,
            parameters=parameters,
            trained=trained,
            source=source.name,
        )

    def submit(self, given: Given, *, inject: bool = True) -> ObservedJob:
        """Create a job; embedded it runs, and is looked after, in this process.

        Where ``memory.max`` lets the memory limit be raised, the job starts with the one that runs
        alike were raised to.

        Args:
            given: mapping, model of kubeflow's client, path, or text of YAML or JSON.
            inject: patch it first; a job that is patched already is not changed by that.

        Raises:
            InputError: refused before anything started.
            JobExists: a job of that name is there; it is left alone.
        """
        return self.submit_source(submission.read(given), inject=inject)

    def submit_source(self, source: ManifestSource, *, inject: bool = True) -> ObservedJob:
        """The same of a job that is read already; relative scripts are looked for in its folder."""
        return submission.submit(self._connection, source, inject=inject)

    def diagnose(self, namespace: str = "default", given: Manifest | None = None) -> Diagnosis:
        """What the cluster lacks for jobs of a namespace, and how to mend it; creates nothing.

        Args:
            namespace: that jobs go to.
            given: a job that is to be tried; None tries a small example.

        Raises:
            InputError: jobs are embedded, or the job is wrong.
            ClusterUnavailable: the API server does not answer at all.
        """
        return diagnose(self.api, namespace, given, settings=self.settings.injection)

    def train(
        self,
        what: Callable[..., object] | pathlib.Path | str,
        *,
        parameters: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        name: str = "",
        namespace: str = "default",
        num_workers: int | str = 1,
        num_procs_per_worker: int = 1,
        resources_per_worker: Mapping[str, Any] | None = None,
        base_image: str = "",
        checkpoints: str = "",
        policy: Mapping[str, str] | None = None,
    ) -> ObservedJob:
        """Run a torchrun script, or a function, as an elastic job.

        **Usage**::

            def fit(parameters):
                import torch
                ...

            job = rover.train(fit, parameters={"steps": 100}, num_workers="1:4")
            rover.wait(job.key)

        Args:
            what: a function, which imports what it needs in its body, or the path of a script.
            parameters: of a function: one dictionary of plain data.
            arguments: of a script: words of its command line.
            name: of the job; empty: made of the function's or script's.
            namespace: of the job.
            num_workers: replicas: ``4``, or fewest and most, ``"1:4"``; the job starts with
                the most, and with fewer where there is no room for them.
            num_procs_per_worker: training processes of a replica.
            resources_per_worker: such as ``{"cpu": 2, "memory": "4Gi", "gpu": 1}``.
            base_image: on a cluster: with Python and torch.
            checkpoints: a folder (embedded), ``claim:NAME`` or an object store's URL; empty: in
                memory alone.
            policy: annotations without their prefix: ``{"checkpoint.every": "50"}``.

        Raises:
            InputError: refused before anything started.
        """
        stem = getattr(what, "__name__", "") if callable(what) else pathlib.Path(what).stem
        name = name or unique_name(stem)
        script = script_of(self._connection, name, what, parameters, arguments)
        least, most = parse_replicas(num_workers)
        return self.start_training(
            TrainingSpec(
                script=script,
                name=name,
                min_replicas=least,
                max_replicas=most,
                arguments=tuple(arguments),
                namespace=namespace,
                processes=num_procs_per_worker,
                image=base_image,
                resources=Resources.from_mapping(resources_per_worker),
                checkpoints=checkpoints,
                policy=dict(policy or {}),
            )
        )

    def start_training(self, spec: TrainingSpec) -> ObservedJob:
        """Create the job that is asked for.

        Raises:
            InputError: refused before anything started.
        """
        return start(self._connection, spec)

    def get(self, key: JobKey | str) -> ObservedJob:
        """Read one job.

        Args:
            key: of the job; as everywhere ``NAME`` is a PyTorchJob, and ``tfjob/NAME`` a TFJob, in
                the namespace ``default``.
        """
        return self.cluster.get_job(to_key(key))

    def list(self, namespace: str | None = None) -> JobList:
        """Labelled jobs of a namespace, or of all."""
        return JobList(self.cluster.list_jobs(namespace))

    def wait(
        self, key: JobKey | str, until: str = "Succeeded", timeout: float | None = None
    ) -> ObservedJob:
        """Wait until the job's phase is ``until``.

        Raises:
            JobFailed: it ended otherwise; the message holds the verdict.
            WaitTimeout: it did not get there in ``timeout`` seconds; it goes on.
        """
        return self._wait(to_key(key), {until}, timeout, POLL_SECONDS)

    def status(self, key: JobKey | str, *, after: int = 0) -> CoordinatorStatus:
        """What the job's coordinator knows; events with a sequence above ``after``.

        Raises:
            ClusterUnavailable: it does not answer (not started yet, ended, being replaced).
        """
        return fetch_status(self.cluster, to_key(key), after=after)

    def progress(self, key: JobKey | str) -> Progress:
        """Where the job stands; never fails because the coordinator is silent.

        Of a job that has ended the history tells how far it came.
        """
        key = to_key(key)
        try:
            status = self.status(key, after=names.NO_EVENTS)
        except errors.ClusterUnavailable:
            status = None
        job = self.get(key)
        seen = make_progress(job, self.cluster.list_pods(key), status)
        if status is None and seen.finished:
            seen = with_final_record(seen, results.run_of(self.history, job))
        return dataclasses.replace(seen, timestamp=time.time())

    def watch(self, key: JobKey | str, *, every: float = 0.5) -> Iterator[Progress]:
        """Progress every so many seconds, with what was told meanwhile, until the job's end."""
        key, seen = to_key(key), set[Event]()
        last: Progress | None = None
        while last is None or not last.finished:
            if last is not None:
                time.sleep(every)
            now = self.progress(key)
            if now.finished:
                self.settle(key)
            fresh = tuple(event for event in self.events(key) if event not in seen)
            seen.update(fresh)
            # The coordinator goes before the job does: what it said last still stands.
            last = dataclasses.replace(carry_over(now, last), events=fresh)
            yield last

    def follow(
        self, key: JobKey | str, *, every: float = 0.5, timeout: float | None = None
    ) -> JobHistory:
        """Show where the job stands until it ends: in place in a notebook and on a terminal.

        Ctrl-C, or a notebook's stop button, ends the showing; the job goes on.

        Args:
            key: of the job.
            every: seconds between two looks.
            timeout: most seconds to show it.

        Raises:
            JobFailed: it failed; the message holds the verdict.
            WaitTimeout: it has not ended in ``timeout`` seconds; it goes on.
        """
        until = None if timeout is None else time.monotonic() + timeout
        seen: list[Progress] = []
        with ProgressDisplay() as screen:
            for progress in self.watch(key, every=every):
                screen.show(progress)
                seen.append(progress)
                if until is not None and time.monotonic() > until and not progress.finished:
                    raise errors.WaitTimeout(f"{key} has not ended in {timeout:g} s; it goes on")
        if seen[-1].phase != "Succeeded":
            raise errors.JobFailed(f"{key} is {seen[-1].phase}: {self.verdict(key)}")
        return JobHistory(seen)

    def events(self, key: JobKey | str) -> EventList:
        """Events of the job, oldest first; of one that is gone those that the history keeps.

        Raises:
            NoSuchJob: neither knows it.
        """
        key = to_key(key)
        if current := self.cluster.list_events(key):
            return EventList(current)
        try:
            self.get(key)
        except errors.NoSuchJob:
            record = self.record(key)
            if record is None:
                raise
            return EventList(record.events)
        return EventList(())

    def logs(
        self,
        key: JobKey | str,
        pod: str | None = None,
        *,
        container: str | None = None,
        tail: int | None = None,
    ) -> LogView:
        """What a container (the one that trains) of a pod (the first) printed so far.

        Raises:
            NoSuchJob: there is no such pod.
        """
        job = self.get(key)
        pods = self.cluster.list_pods(job.key)
        if pod is None and not pods:
            raise errors.NoSuchJob(f"{key} has no pod yet")
        name = container or kind_of(job.manifest).container
        return LogView(self.cluster.read_log(job.key, pod or pods[0].name, name, tail=tail))

    def scale(self, key: JobKey | str, workers: int) -> ObservedJob:
        """Set Worker replicas; the world re-forms, or workers of a TFJob come and go.

        No step is lost where one ends within seconds: a pod that goes lets the world drain first.

        Raises:
            InputError: outside of what the job allows, or a TFJob whose size is fixed.
        """
        wanted = patches.resize_job(self.get(key), workers)
        job = wanted.job
        if kind_of_job(job).elastic:  # no world of a chief's changes
            size = job.nodes - job.replicas.get("worker", 0) + workers
            request = ScaleRequest(size, "by hand")
            with contextlib.suppress(errors.ClusterUnavailable):
                # Not running yet, or not to be reached from here: then it sees who comes and goes.
                self.cluster.call_coordinator(job.key, "POST", names.PATH_SCALE, request)
        return self.cluster.patch_job(job.key, wanted.patch)

    def pause(
        self, key: JobKey | str, *, wait: float = 120.0, force: bool = False
    ) -> SuspendResult:
        """Suspend a job, its state made durable first, and wait until its pods have gone.

        Raises:
            InputError: it has ended, is another's to suspend, or would lose what it has done.
        """
        return patches.pause(self.cluster, to_key(key), wait=wait, force=force)

    def resume(self, key: JobKey | str) -> ObservedJob:
        """Let a suspended job go on from storage.

        Raises:
            InputError: it has ended, or is another's to resume.
        """
        return patches.resume(self.cluster, to_key(key))

    def explain(self, key: JobKey | str) -> Explanation:
        """Why the job has its size: decisions, what they reckoned with, what came of them."""
        return explain.explain(self.cluster, self.history, to_key(key))

    def delete(self, key: JobKey | str) -> None:
        """Delete the job with its pods; checkpoints on claims stay."""
        self.cluster.delete_job(to_key(key))

    def record(self, key: JobKey | str) -> RunRecord | None:
        """What the history keeps of the job's newest run."""
        return results.latest_run(self.history, to_key(key))

    def report(self, key: JobKey | str, path: pathlib.Path | str) -> results.ReportFile:
        """Write the run's report, one self-contained HTML file.

        Raises:
            NoSuchJob: the history has no run of that job.
            InputError: the file cannot be written.
        """
        return results.write_report(self.cluster, self.history, to_key(key), pathlib.Path(path))

    def verdict(self, key: JobKey | str) -> str:
        """Why a job ended as it did, in the best words there are."""
        return results.final_reason(self.cluster, self.history, to_key(key))

    # The verbs of kubeflow's TrainingClient, by their own names, for code that is written for it.
    # They return our frozen views in place of models.

    def create_job(
        self,
        job: Any = None,
        name: str | None = None,
        namespace: str | None = None,
        *,
        train_func: Callable[..., object] | None = None,
        parameters: Mapping[str, Any] | None = None,
        base_image: str = "",
        num_workers: int | str = 1,
        num_procs_per_worker: int = 1,
        resources_per_worker: Mapping[str, Any] | None = None,
    ) -> ObservedJob:
        """Submit a job (a model, a mapping), or train with a function.

        Raises:
            InputError: neither or both are given, or it is refused.
        """
        if (job is None) == (train_func is None):
            raise errors.InputError("create_job needs one of job and train_func")
        if train_func is None:
            return self.submit(job)
        return self.train(
            train_func,
            parameters=parameters,
            name=name or "",
            namespace=namespace or self.namespace,
            num_workers=num_workers,
            num_procs_per_worker=num_procs_per_worker,
            resources_per_worker=resources_per_worker,
            base_image=base_image,
        )

    def get_job(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> ObservedJob:
        """Read one job."""
        return self.get(self._key(name, namespace, job_kind))

    def list_jobs(
        self, namespace: str | None = None, job_kind: str | None = None
    ) -> tuple[ObservedJob, ...]:
        """Labelled jobs of a kind in a namespace: those that the other verbs find by their names.

        Raises:
            InputError: there is no such kind.
        """
        kind = self._kind(job_kind)
        found = self.list(namespace or self.namespace)
        return tuple(job for job in found if job.key.kind == kind)

    def delete_job(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> None:
        """Delete a job with its pods."""
        self.delete(self._key(name, namespace, job_kind))

    def get_job_pods(
        self, name: str, namespace: str | None = None, *, job_kind: str | None = None
    ) -> tuple[Pod, ...]:
        """A job's pods in replica order."""
        return self.cluster.list_pods(self.get(self._key(name, namespace, job_kind)).key)

    def get_job_logs(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> dict[str, str]:
        """What the trainers of a job printed so far, by pod."""
        key = self._key(name, namespace, job_kind)
        pods = self.get_job_pods(name, namespace, job_kind=job_kind)
        return {pod.name: self.logs(key, pod.name) for pod in pods}

    def get_job_conditions(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> builtins.list[Mapping[str, Any]]:
        """The Training Operator's conditions of a job, oldest first."""
        status = self.get_job(name, namespace, job_kind).manifest.get("status") or {}
        return list(status.get("conditions") or ())

    def wait_for_job_conditions(  # noqa: PLR0917 - in kubeflow's places
        self,
        name: str,
        namespace: str | None = None,
        job_kind: str | None = None,
        expected_conditions: Collection[str] = ("Succeeded",),
        wait_timeout: float = 600,
        polling_interval: float = POLL_SECONDS,
    ) -> ObservedJob:
        """Wait until the job's last condition is one of those expected.

        Raises:
            JobFailed: it ended otherwise; the message holds the verdict.
            WaitTimeout: it did not get there in time; it goes on.
        """
        key = self._key(name, namespace, job_kind)
        return self._wait(key, expected_conditions, wait_timeout, polling_interval)

    def is_job_created(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether the operator has seen it."""
        told = self.get_job_conditions(name, namespace, job_kind)
        return "Created" in {item["type"] for item in told}

    def is_job_running(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether it runs now."""
        return self.get_job(name, namespace, job_kind).phase == "Running"

    def is_job_restarting(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether pods of it are made anew now."""
        return self.get_job(name, namespace, job_kind).phase == "Restarting"

    def is_job_succeeded(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether it ended well."""
        return self.get_job(name, namespace, job_kind).phase == "Succeeded"

    def is_job_failed(
        self, name: str, namespace: str | None = None, job_kind: str | None = None
    ) -> bool:
        """Whether it ended otherwise."""
        return self.get_job(name, namespace, job_kind).phase == "Failed"

    def _wait(
        self, key: JobKey, phases: Collection[str], timeout: float | None, every: float
    ) -> ObservedJob:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            job = self.get(key)
            if job.finished:
                self.settle(key)
            if job.phase in phases:
                return job
            if job.finished:
                raise errors.JobFailed(f"{key} is {job.phase}: {self.verdict(key)}")
            if deadline is not None and time.monotonic() > deadline:
                expected = " or ".join(sorted(phases))
                raise errors.WaitTimeout(
                    f"{key} is {job.phase or 'new'}, not {expected}, after {timeout:g} s; "
                    "it goes on"
                )
            time.sleep(every)

    def _key(self, name: str, namespace: str | None, job_kind: str | None) -> JobKey:
        return JobKey(namespace or self.namespace, name, self._kind(job_kind))

    def _kind(self, requested: str | None) -> str:
        kind = requested or self.job_kind
        if kind not in (known.kind for known in registry.job_kinds()):
            allowed = registry.allowed_kinds()
            raise errors.InputError(f"job_kind is {kind!r}; allowed: {allowed}")
        return kind

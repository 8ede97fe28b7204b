# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a plan wants done, done: the only writes of the reconcilers."""

from __future__ import annotations

import dataclasses
import logging

from rover_kf import errors
from rover_kf.api import codec, names
from rover_kf.api.jobs import Event, ObservedJob
from rover_kf.api.status import Ack, ScaleRequest
from rover_kf.cluster.protocol import Cluster
from rover_kf.reconcilers import status_annotation
from rover_kf.reconcilers.plan import (
    AnnounceResize,
    CallCoordinator,
    Cordon,
    DeleteJob,
    DeleteLostPod,
    DeletePod,
    Effect,
    EmitJobEvent,
    PatchJob,
    ReconcilePlan,
    ResizeContainer,
)

LOG = logging.getLogger(__name__)

PATCH_TRIES = 4


class Executor:
    """An executor of plans on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def apply(self, job: ObservedJob, plan: ReconcilePlan, now: float) -> bool:
        """Do what was planned for the job, in order; False if something waits for the next look."""
        try:
            for effect in plan.effects:
                job = self._execute(job, effect, now)
        except errors.NoSuchJob:
            LOG.info("%s: went while it was looked at", job.key)
            return True
        except (errors.Conflict, errors.ClusterUnavailable) as error:
            LOG.info("%s: looked at again in a moment: %s", job.key, error)
            return False
        return True

    def _execute(self, job: ObservedJob, effect: Effect, now: float) -> ObservedJob:
        """Do one thing; the job as it is then, as far as we have changed it."""
        match effect:
            case PatchJob():
                return self._patch(job, effect, now)
            case EmitJobEvent(event):
                self._emit(job, event)
            case AnnounceResize():
                self._announce_resize(job, effect)
            case CallCoordinator():
                self._call_coordinator(job, effect)
            case DeletePod(pod):
                self._cluster.delete_pod(job.key, pod.name)
            case ResizeContainer():
                self._resize_container(job, effect)
            case Cordon():
                self._cordon(job, effect, now)
            case DeleteJob():
                self._delete_job(job)
            case DeleteLostPod():
                self._delete_lost_pod(job, effect)
        return job

    def _announce_resize(self, job: ObservedJob, effect: AnnounceResize) -> None:
        body = ScaleRequest(effect.nodes, effect.reason)
        try:
            reply = self._cluster.call_coordinator(job.key, "POST", names.PATH_SCALE, body)
            answer = codec.loads(Ack, reply)
        except errors.Unreachable as error:  # it sees who comes and goes
            LOG.info("%s: it is not announced: %s", job.key, error)
            return
        except (errors.InputError, errors.ClusterUnavailable) as error:
            answer = Ack(done=False, reason=str(error))
        if not answer.done:
            message = f"the coordinator does not take {effect.nodes} pods: {answer.reason}"
            if effect.required:
                raise errors.ClusterUnavailable(message)
            LOG.warning("%s: %s", job.key, message)

    def _call_coordinator(self, job: ObservedJob, effect: CallCoordinator) -> None:
        try:
            self._cluster.call_coordinator(
                job.key, "POST", effect.path, effect.body, pod=effect.pod
            )
        except errors.ClusterUnavailable as error:
            if effect.retried and not isinstance(error, errors.Unreachable):
                raise
            LOG.log(effect.level, "%s: %s: %s", job.key, effect.failure, error)

    def _emit(self, job: ObservedJob, event: Event) -> None:
        try:
            self._cluster.emit(job.key, event)
        except errors.InputError as refusal:  # who watches a job need not be able to make Events
            LOG.info("%s: %s is not told: %s", job.key, event.reason, refusal)

    def _emit_warning(self, job: ObservedJob, reason: str, message: str, source: str) -> None:
        """Emit a warning that is the same line at each look, and so one Event."""
        event = Event(reason, message, warning=True, at=job.created_at, sequence=1, source=source)
        self._emit(job, event)

    def _delete_lost_pod(self, job: ObservedJob, effect: DeleteLostPod) -> None:
        pod = effect.pod
        try:
            self._cluster.force_delete_pod(job.key, pod)
        except errors.InputError as refusal:  # who watches a job need not have the right
            message = f"{pod.name} is not removed, though {pod.node} is not heard: {refusal}"
            self._emit_warning(job, names.EVENT_POD_NOT_REMOVED, message, pod.uid)
        else:
            self._emit(job, effect.event)

    def _resize_container(self, job: ObservedJob, effect: ResizeContainer) -> None:
        pod = effect.pod
        try:
            self._cluster.resize_pod(job.key, pod, effect.container, effect.resources)
        except errors.NoSuchJob:
            LOG.info("%s: %s went before it was given more %s", job.key, pod.name, effect.resource)
        except errors.InputError as refusal:
            what = effect.resource
            message = f"{pod.name} does not get the {what} that its template states: {refusal}"
            self._emit_warning(job, effect.failure_reason, message, pod.uid)

    def _cordon(self, job: ObservedJob, effect: Cordon, now: float) -> None:
        node, reason = effect.node, effect.reason
        try:
            self._cluster.cordon_node(node, f"{job.key}: {reason}")
        except (errors.NoSuchJob, errors.InputError) as refusal:
            message = (
                f"{node} is not cordoned: {refusal}; the component `cordon` of the manifests gives "
                "the controller that right"
            )
            told = Event(names.EVENT_NODE_NOT_CORDONED, message, warning=True, at=now)
        else:
            message = f"{node} is cordoned until `kubectl uncordon {node}` (nodes.cordon): {reason}"
            told = Event(names.EVENT_NODE_CORDONED, message, warning=True, at=now)
        self._emit(job, told)

    def _delete_job(self, job: ObservedJob) -> None:
        try:
            self._cluster.delete_job(job.key)
        except errors.InputError as refusal:
            message = (
                f"the job is suspended, not deleted: {refusal}; the component `delete-lost` of the "
                "manifests gives the controller that right"
            )
            self._emit_warning(job, names.EVENT_NOT_DELETED, message, job.uid)

    def _patch(self, job: ObservedJob, effect: PatchJob, now: float) -> ObservedJob:
        """Patch the version that was planned for, or one with its inputs, or raise Conflict."""
        text = status_annotation.write(dataclasses.replace(effect.status, written_at=now))
        annotations = {names.STATUS_ANNOTATION: text, **effect.annotations}
        patch: dict[str, object] = {"metadata": {"annotations": annotations}}
        if effect.spec:
            patch["spec"] = effect.spec
        for _ in range(PATCH_TRIES):
            try:
                version = job.resource_version
                return self._cluster.patch_job(job.key, patch, resource_version=version)
            except errors.Conflict:  # noqa: PERF203 - a retry is what the loop is for
                fresh = self._cluster.get_job(job.key)
                if _plan_inputs(fresh) != _plan_inputs(job):
                    raise
                job = fresh
        raise errors.Conflict(f"{job.key} changes faster than it can be patched")


def _plan_inputs(job: ObservedJob) -> tuple[object, ...]:
    """All of a job that a plan depends on: what its users and we ourselves write."""
    metadata = job.manifest["metadata"]
    return job.uid, job.manifest["spec"], metadata.get("annotations"), metadata.get("labels")

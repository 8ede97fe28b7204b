# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TFJob: processes of a fixed cluster, or a chief that drives workers and parameter servers."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Manifest, Pod
from rover_kf.api.policy import PolicySections
from rover_kf.job_kinds.job_kind import JobKind
from rover_kf.job_kinds.tfjob import rules

_REASON = "NodeLost"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfJobKind(JobKind):
    """The kind, whose operator fails a job that loses a pod."""

    def standalone_types(self, manifest: Manifest) -> frozenset[str]:
        """Evaluators, and where there are parameter servers these and the workers.

        They are TensorFlow's servers, which the chief's program drives; they come and go without
        the others.
        """
        kinds = {item.kind for item in self.replicas(manifest)}
        return frozenset({"evaluator", *(("ps", "worker") if "ps" in kinds else ())})

    def is_dynamic(self, manifest: Manifest) -> bool:
        """Whether its workers come and go, each a client of its own."""
        return rules.is_dynamic(manifest)

    def dynamic_cluster_spec(self, manifest: Manifest, most_workers: int) -> str:
        """JSON of all addresses that such a job may ever have; empty for any other job."""
        if not rules.is_dynamic(manifest):
            return ""
        return rules.dynamic_cluster_spec(self, manifest, most_workers)

    def check(self, manifest: Manifest, policy: PolicySections, source: str) -> None:
        """Reject a TFJob that could not train."""
        rules.check_tfjob(self, manifest, policy, source)

    def check_update(self, old: Manifest, new: Manifest, source: str) -> None:
        """Reject a change of size while the job runs."""
        rules.check_update(self, old, new, source)

    def lost_pod_status(self, pod: Pod) -> Mapping[str, Any]:
        """Failed, its trainer by SIGKILL.

        The Training Operator fails a TFJob that has a pod which is said to run and is being
        deleted; even a deletion without grace shows such a version of it for a moment. One that
        has failed by a signal it recreates. Nobody else will ever write that status: the kubelet
        is as gone as the node.
        """
        restarts = {item.name: item.restarts for item in pod.containers}
        trainer = {
            "name": self.container,
            "image": "",
            "imageID": "",
            "ready": False,
            "restartCount": restarts.get(self.container, 0),
            "state": {"terminated": {"exitCode": 128 + signal.SIGKILL, "reason": _REASON}},
        }
        return {
            "metadata": {"uid": pod.uid},
            "status": {
                "phase": "Failed",
                "reason": _REASON,
                "message": f"node {pod.node} is not heard any more",
                "containerStatuses": [trainer],
            },
        }


TFJOB = TfJobKind(
    kind=names.TFJOB,
    plural=names.TFJOBS,
    specs="tfReplicaSpecs",
    container=names.TENSORFLOW_CONTAINER,
    kinds=("chief", "master", "worker", "ps", "evaluator"),
    leading_types=("chief", "master"),
    restart_policy="Never",
    elastic=False,
    writes_files=True,
)

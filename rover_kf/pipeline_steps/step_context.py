# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The identity of a pipeline's step: its run, its Workflow, its pod.

Kubeflow Pipelines passes neither; the step reads both from its own pod with its own rights.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import socket
from collections.abc import Mapping
from typing import Any

from rover_kf import errors
from rover_kf.cluster.protocol import Cluster
from rover_kf.doctor.api_query import ApiClient

SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
RUN_LABEL = "pipeline/runid"
"""On the pod of every step of Kubeflow Pipelines."""
WORKFLOW = "Workflow"
DEFAULT_NAMESPACE = "default"


@dataclasses.dataclass(frozen=True, slots=True)
class StepContext:
    """One attempt at one step."""

    run: str = ""
    """Of the pipeline; empty: none is known."""
    holder: str = ""
    """This attempt: another one of the same step has another name."""
    namespace: str = DEFAULT_NAMESPACE
    """Of jobs that state none."""
    owner: Mapping[str, str] | None = None
    """Reference to the object with which its jobs shall go."""
    notes: tuple[str, ...] = ()
    """What could not be found out, for the log."""


def read(
    cluster: Cluster,
    run: str = "",
    *,
    environment: Mapping[str, str] | None = None,
    account: pathlib.Path = SERVICE_ACCOUNT,
) -> StepContext:
    """Find out which step this is; an empty ``run`` is the one of the step's pod.

    ``account`` is the folder with the pod's namespace; there is none outside of a pod.
    """
    told = os.environ if environment is None else environment
    pod = told.get("KFP_POD_NAME") or told.get("HOSTNAME") or socket.gethostname()
    api: ApiClient | None = getattr(cluster, "api", None)
    place = account / "namespace"
    if api is None or not place.exists():
        return StepContext(run, f"{pod}:{os.getpid()}")
    namespace = place.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
    try:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        found = api.request("GET", path, what=f"the step's own pod {pod}")
    except errors.RoverError as cause:
        note = f"the job will not be deleted with its Workflow, which could not be found: {cause}"
        return StepContext(run, pod, namespace, notes=(note,))
    return from_pod(found, run)


def from_pod(pod: Mapping[str, Any], run: str = "") -> StepContext:
    """The step whose pod that is; pure."""
    metadata = pod["metadata"]
    references = metadata.get("ownerReferences") or ()
    owner = next((one for one in references if one["kind"] == WORKFLOW), None)
    if owner is not None:
        owner = {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}
    of_run = run or (metadata.get("labels") or {}).get(RUN_LABEL) or (owner["uid"] if owner else "")
    # Of two attempts in one pod the later one has restarted more often.
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    restarts = sum(int(one.get("restartCount") or 0) for one in states)
    holder = f"{metadata['name']}:{restarts}"
    return StepContext(of_run, holder, metadata["namespace"], owner)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Rules for the end of a container or a pod, as Kubernetes tells of it, in order."""

from __future__ import annotations

from rover_kf.elastic.failures.rule import (
    CONTAINER,
    NODE,
    POD,
    RAISE_MEMORY,
    REPLACE_NODE,
    REPLACE_POD,
    RESTART_CONTAINER,
    Rule,
)

_KUBERNETES = "https://kubernetes.io/docs/concepts"
_SHUTDOWN = f"{_KUBERNETES}/cluster-administration/node-shutdown/"

KILLED = Rule(
    "process_killed",
    CONTAINER,
    RESTART_CONTAINER,
    "was killed, and Kubernetes does not say for what: mostly for memory, at its own limit or its "
    "node's, or by somebody on its node",
    codes=frozenset({137}),
    reasons=frozenset({"Error"}),
)
"""SIGKILL. A container that is killed at its limit ends so, too, where its runtime hears of its end
before it hears for what."""

RULES = (
    Rule(
        "out_of_memory",
        CONTAINER,
        RAISE_MEMORY,
        "was killed for memory; raise its memory limit",
        reasons=frozenset({"OOMKilled"}),
    ),
    KILLED,
    Rule(
        "preempted",
        POD,
        REPLACE_POD,
        "made room for a pod of higher priority; a PriorityClass for the job would keep it",
        reasons=frozenset({"PreemptionByScheduler", "Preempting"}),
        consumes_budget=False,
    ),
    Rule(
        "node_lost",
        NODE,
        REPLACE_NODE,
        "is on a node that does not answer, or was taken from one by its taint",
        reasons=frozenset({"NodeLost", "DeletionByTaintManager", "DeletionByPodGC"}),
        consumes_budget=False,
    ),
    Rule(
        "node_shutdown",
        NODE,
        REPLACE_NODE,
        "is on a node that is shutting down",
        source=_SHUTDOWN,
        needs="systemd-logind, of which the kubelet hears by D-Bus",
        reasons=frozenset({"Terminated", "NodeShutdown"}),
        consumes_budget=False,
    ),
    Rule(
        "drained",
        NODE,
        REPLACE_NODE,
        "was evicted through the API, as `kubectl drain` does",
        reasons=frozenset({"EvictionByEvictionAPI"}),
        consumes_budget=False,
    ),
    Rule(
        "over_storage_limit",
        POD,
        REPLACE_POD,
        "wrote more than its own limit of local storage and was evicted for it; raise that limit "
        "(a volume's sizeLimit, a container's ephemeral-storage), or write elsewhere",
        text=r"exceed(?:s|ed) (?:the limit|the total limit of containers|its local ephemeral)",
        reasons=frozenset({"Evicted", "TerminationByKubelet"}),
    ),
    Rule(
        "evicted",
        NODE,
        REPLACE_NODE,
        "was evicted by its node, which is short of memory, disk or process numbers; raise what "
        "the pod requests to what it uses",
        reasons=frozenset({"Evicted", "TerminationByKubelet"}),
    ),
    Rule(
        "deadline_exceeded",
        POD,
        REPLACE_POD,
        "ran for longer than its activeDeadlineSeconds",
        reasons=frozenset({"DeadlineExceeded"}),
    ),
    Rule(
        "not_admitted",
        NODE,
        REPLACE_NODE,
        "was refused by its node, which no longer has the devices or resources it was placed for",
        reasons=frozenset(
            {"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity"}
        ),
    ),
    Rule(
        "not_startable",
        CONTAINER,
        RESTART_CONTAINER,
        "cannot be started: its image, its command or what it mounts is not there",
        reasons=frozenset(
            {
                "ContainerCannotRun",
                "StartError",
                "RunContainerError",
                "CreateContainerConfigError",
                "CreateContainerError",
                "ErrImageNeverPull",
                "ErrImagePull",
                "ImagePullBackOff",
                "InvalidImageName",
            }
        ),
    ),
)

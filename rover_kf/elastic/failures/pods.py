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
    "was killed, and Kubernetes does not say for what: mostly for memory, at its own limit or its "
    "node's, or by somebody on its node",
    scope=CONTAINER,
    action=RESTART_CONTAINER,
    codes=frozenset({137}),
    reasons=frozenset({"Error"}),
)
"""SIGKILL, or a kill for memory whose cause the runtime does not know yet."""

RULES = (
    Rule(
        "out_of_memory",
        "was killed for memory; raise its memory limit",
        scope=CONTAINER,
        action=RAISE_MEMORY,
        reasons=frozenset({"OOMKilled"}),
    ),
    KILLED,
    Rule(
        "preempted",
        "made room for a pod of higher priority; a PriorityClass for the job would keep it",
        scope=POD,
        action=REPLACE_POD,
        reasons=frozenset({"PreemptionByScheduler", "Preempting"}),
        consumes_budget=False,
    ),
    Rule(
        "node_lost",
        "is on a node that does not answer, or was taken from one by its taint",
        scope=NODE,
        action=REPLACE_NODE,
        reasons=frozenset({"NodeLost", "DeletionByTaintManager", "DeletionByPodGC"}),
        consumes_budget=False,
    ),
    Rule(
        "node_shutdown",
        "is on a node that is shutting down",
        scope=NODE,
        action=REPLACE_NODE,
        source=_SHUTDOWN,
        needs="systemd-logind, of which the kubelet hears by D-Bus",
        reasons=frozenset({"Terminated", "NodeShutdown"}),
        consumes_budget=False,
    ),
    Rule(
        "drained",
        "was evicted through the API, as `kubectl drain` does",
        scope=NODE,
        action=REPLACE_NODE,
        reasons=frozenset({"EvictionByEvictionAPI"}),
        consumes_budget=False,
    ),
    Rule(
        "over_storage_limit",
        "wrote more than its own limit of local storage and was evicted for it; raise that limit "
        "(a volume's sizeLimit, a container's ephemeral-storage), or write elsewhere",
        scope=POD,
        action=REPLACE_POD,
        text=r"exceed(?:s|ed) (?:the limit|the total limit of containers|its local ephemeral)",
        reasons=frozenset({"Evicted", "TerminationByKubelet"}),
    ),
    Rule(
        "evicted",
        "was evicted by its node, which is short of memory, disk or process numbers; raise what "
        "the pod requests to what it uses",
        scope=NODE,
        action=REPLACE_NODE,
        reasons=frozenset({"Evicted", "TerminationByKubelet"}),
    ),
    Rule(
        "deadline_exceeded",
        "ran for longer than its activeDeadlineSeconds",
        scope=POD,
        action=REPLACE_POD,
        reasons=frozenset({"DeadlineExceeded"}),
    ),
    Rule(
        "not_admitted",
        "was refused by its node, which no longer has the devices or resources it was placed for",
        scope=NODE,
        action=REPLACE_NODE,
        reasons=frozenset(
            {"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity"}
        ),
    ),
    Rule(
        "not_startable",
        "cannot be started: its image, its command or what it mounts is not there",
        scope=CONTAINER,
        action=RESTART_CONTAINER,
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

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes itself: its version, and whether every node can run native sidecars."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

from rover_kf.doctor.api_query import ApiClient, ListResult, ObjectResult, list_all
from rover_kf.doctor.finding import Finding, unknown

OLDEST = (1, 29)
"""Kubernetes from which on native sidecars need no feature gate."""
_MINOR = re.compile(r"v?(\d+)\.(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterVersions:
    """What server and nodes say of themselves."""

    server: ObjectResult
    nodes: ListResult


def collect(api: ApiClient) -> ClusterVersions:
    """Ask the server and its nodes."""
    return ClusterVersions(
        ObjectResult(api.request("GET", "/version", what="the API server's version")),
        list_all(api, "/api/v1/nodes", "nodes"),
    )


def check(observed: ClusterVersions) -> Iterator[Finding]:
    """Server first, then nodes."""
    told = str((observed.server.value or {}).get("gitVersion"))
    oldest = ".".join(map(str, OLDEST))
    found = parse_minor(told)
    if found is None:
        yield Finding("kubernetes", "unknown", f"the API server calls its version {told!r}")
    elif found < OLDEST:
        mend = f"upgrade Kubernetes to {oldest} or newer: older ones have no native sidecars"
        yield Finding("kubernetes", "broken", f"the API server is {told}", mend)
    else:
        yield Finding("kubernetes", "good", f"the API server is {told}")
    if observed.nodes.denial:
        yield unknown("nodes", observed.nodes.denial, "list nodes")
        return
    kubelets = {
        str(node["metadata"]["name"]): str(node["status"]["nodeInfo"]["kubeletVersion"])
        for node in observed.nodes.items
    }
    old = {
        name: version
        for name, version in kubelets.items()
        if (parse_minor(version) or OLDEST) < OLDEST
    }
    if not kubelets:
        yield Finding("nodes", "broken", "the cluster has no nodes", "add a node")
    elif old:
        shown = ", ".join(f"{name} ({version})" for name, version in sorted(old.items()))
        what = f"kubelets without native sidecars: {shown}"
        yield Finding("nodes", "broken", what, f"upgrade those nodes to {oldest} or newer")
    else:
        what = f"{len(kubelets)} nodes, kubelets {', '.join(sorted(set(kubelets.values())))}"
        yield Finding("nodes", "good", what)


def parse_minor(version: str) -> tuple[int, int] | None:
    """Major and minor number of a version such as ``v1.34.4``; None if it is none."""
    match = _MINOR.match(version)
    return None if match is None else (int(match[1]), int(match[2]))

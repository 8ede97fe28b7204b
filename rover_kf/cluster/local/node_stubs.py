# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a cluster of nodes is asked for and one machine has no use for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api.cluster_capacity import NamespaceObjects
from rover_kf.api.jobs import JobKey, Manifest, Pod


class NodeStubs:
    """The part of LocalCluster that is about nodes and their limits."""

    def unreachable_nodes(self, nodes: Collection[str]) -> dict[str, float]:
        """None: the one machine is this one."""
        del nodes
        return {}

    def node_memory(self) -> tuple[str, ...]:
        """Nothing: limits are not enforced here."""
        return ()

    def node_cpu(self) -> tuple[str, ...]:
        """Nothing: limits are not enforced here."""
        return ()

    def namespace_objects(self, namespace: str) -> NamespaceObjects:
        """Nothing: replicas here share one machine, and no limit is enforced."""
        del namespace
        return NamespaceObjects()

    def list_nodes(self) -> tuple[Manifest, ...] | None:
        """None: see surroundings."""
        return None

    def list_all_pods(self) -> Iterator[Manifest]:
        """None."""
        return iter(())

    def dry_run_patch(self, key: JobKey, patch: Mapping[str, Any]) -> str:
        """Nothing: the patch itself is checked."""
        del key, patch
        return ""

    def cordon_node(self, name: str, reason: str) -> None:
        """Refused: nothing could run anywhere else.

        Raises:
            InputError: always.
        """
        raise errors.InputError(f"{name} is the one machine that there is, and stays ({reason})")

    def supports_pod_resize(self) -> bool:
        """Yes: there is nothing to it where no limit is enforced."""
        return True

    def resize_pod(
        self, key: JobKey, pod: Pod, container: str, resources: Mapping[str, Any]
    ) -> None:
        """Nothing: limits are not enforced here."""

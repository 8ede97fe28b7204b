# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the sidecar's port out of a service mesh: a token guards it, and peers have no proxy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rover_kf.api import names

ANNOTATIONS = (
    "traffic.sidecar.istio.io/excludeInboundPorts",
    "traffic.sidecar.istio.io/excludeOutboundPorts",
)


def apply(template: Mapping[str, Any]) -> dict[str, Any]:
    """Exclude the port by the pod's annotations, beside ports that are excluded already."""
    metadata = template.get("metadata") or {}
    stated = metadata.get("annotations") or {}
    port = str(names.PORT)
    ours = {}
    for key in ANNOTATIONS:
        ports = [item.strip() for item in stated.get(key, "").split(",") if item.strip()]
        ours[key] = stated[key] if port in ports else ",".join((*ports, port))
    return {**template, "metadata": {**metadata, "annotations": {**stated, **ours}}}

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The init container that copies launcher and trainer code into the shared volume."""

from __future__ import annotations

from typing import Any

from rover_kf.api import names
from rover_kf.injection import command, resources, security, volumes
from rover_kf.injection.plan import ReplicaPlan

COMMAND = ("python", "-m", "rover_kf.sidecar.runtime", command.RUNTIME)


def container(plan: ReplicaPlan) -> dict[str, Any]:
    """The init container of one replica type."""
    return {
        "name": names.RUNTIME_CONTAINER,
        "image": plan.settings.sidecar_image,
        "imagePullPolicy": plan.settings.image_pull_policy,
        "command": list(COMMAND),
        "resources": resources.runtime(plan),
        "securityContext": security.container_context(plan),
        "volumeMounts": [volumes.MOUNT],
    }

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What components are compiled with: their image, and which settings their training pods get.

The image is target ``steps`` of controller/Dockerfile, with kfp in it. Settings go to the training
pods in place of the task's own pod: ``task.set_memory_limit("8Gi")`` then speaks of a training pod;
the task itself takes little. What it needs to reach a history (variables) it gets as well.
"""

from __future__ import annotations

from kfp import dsl

import rover_kf

IMAGE = f"rover-kf-steps:{rover_kf.__version__}"


FIELDS = dsl.TaskConfigField
PASSED_FIELDS = [
    FIELDS.RESOURCES,
    FIELDS.KUBERNETES_TOLERATIONS,
    FIELDS.KUBERNETES_NODE_SELECTOR,
    FIELDS.KUBERNETES_AFFINITY,
    FIELDS.KUBERNETES_VOLUMES,
    dsl.TaskConfigPassthrough(field=FIELDS.ENV, apply_to_task=True),
]

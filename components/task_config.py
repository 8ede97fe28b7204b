# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which settings of a task go to the training pods that it launches, in place of its own pod.

``task.set_memory_limit("8Gi")`` then speaks of a training pod; the task itself takes little. What
it needs to reach a history (variables) it gets as well.
"""

from __future__ import annotations

from kfp import dsl

FIELDS = dsl.TaskConfigField
PASSED_FIELDS = [
    FIELDS.RESOURCES,
    FIELDS.KUBERNETES_TOLERATIONS,
    FIELDS.KUBERNETES_NODE_SELECTOR,
    FIELDS.KUBERNETES_AFFINITY,
    FIELDS.KUBERNETES_VOLUMES,
    dsl.TaskConfigPassthrough(field=FIELDS.ENV, apply_to_task=True),
]

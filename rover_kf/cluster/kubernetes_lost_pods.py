# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is written into the status of a TFJob's pod whose node is gone, before it is removed.

The Training Operator fails a TFJob that has a pod which is said to run and is being deleted; even
a deletion without grace shows such a version of it for a moment. One that has failed by a signal
it makes anew. Nobody else will ever write that status: the kubelet is as gone as the node.
"""

from __future__ import annotations

import signal
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Pod

REASON = "NodeLost"


def killed_with_its_node(pod: Pod) -> dict[str, Any]:
    """Merge patch of its status: failed, its trainer by SIGKILL; of another uid it is refused."""
    restarts = {item.name: item.restarts for item in pod.containers}
    trainer = {
        "name": names.TENSORFLOW_CONTAINER,
        "image": "",
        "imageID": "",
        "ready": False,
        "restartCount": restarts.get(names.TENSORFLOW_CONTAINER, 0),
        "state": {"terminated": {"exitCode": 128 + signal.SIGKILL, "reason": REASON}},
    }
    return {
        "metadata": {"uid": pod.uid},
        "status": {
            "phase": "Failed",
            "reason": REASON,
            "message": f"node {pod.node} is not heard any more",
            "containerStatuses": [trainer],
        },
    }

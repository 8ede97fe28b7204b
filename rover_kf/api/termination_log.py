# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Last words in a container's status: they outlive the processes of the pod, which told of it too.

Kubernetes keeps what a container leaves in its termination log beside its exit code. A controller
that was slow, or away, when the job ended finds it there: the launcher's verdict in the training's
container, the coordinator's last status in the sidecar's.
"""

from __future__ import annotations

import os
import pathlib

from rover_kf.api import names

DEFAULT_PATH = pathlib.Path("/dev/termination-log")
"""Where the kubelet looks, unless the user's container says something else."""
MAX_BYTES = 4096
"""That Kubernetes keeps of a container; of all of a pod 12 KiB."""


def write(mount_path: pathlib.Path, text: str, log_path: pathlib.Path = DEFAULT_PATH) -> bool:
    """Write a text, cut after MAX_BYTES; what the user's program has written there stays.

    At another mount path than a pod's the log is not this container's. A missing log is not
    created.

    Returns:
        Whether it is there now.
    """
    if mount_path != pathlib.Path(names.HOME):
        return False
    try:
        log = os.open(log_path, os.O_WRONLY)
    except OSError:
        return False
    try:
        if os.fstat(log).st_size:
            return False
        whole = text.encode(errors="replace")[:MAX_BYTES].decode(errors="ignore")
        os.write(log, whole.encode())
    except OSError:
        return False
    finally:
        os.close(log)
    return True

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

PLACE = pathlib.Path("/dev/termination-log")
"""Where the kubelet looks, unless the user's container says something else."""
MOST_BYTES = 4096
"""That Kubernetes keeps of a container; of all of a pod 12 KiB."""


def leave(home: pathlib.Path, text: str, place: pathlib.Path = PLACE) -> bool:
    """Write it; what the user's program has written there stays.

    Args:
        home: of the shared volume; in another place than a pod's the log is not this container's.
        text: what is cut after MOST_BYTES.
        place: the log; it is not made where it is not.

    Returns:
        Whether it is there now.
    """
    if home != pathlib.Path(names.HOME):
        return False
    try:
        log = os.open(place, os.O_WRONLY)
    except OSError:
        return False
    try:
        if os.fstat(log).st_size:
            return False
        whole = text.encode(errors="replace")[:MOST_BYTES].decode(errors="ignore")
        os.write(log, whole.encode())
    except OSError:
        return False
    finally:
        os.close(log)
    return True

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict in the container's status: it outlives the pod's coordinator, which tells of it too.

Kubernetes keeps what a container leaves in its termination log beside its exit code. A controller
that was slow, or away, when the job ended finds it there.
"""

from __future__ import annotations

import os
import pathlib

from rover_kf.api import names

PLACE = pathlib.Path("/dev/termination-log")
"""Where the kubelet looks, unless the user's container says something else."""
_MOST_BYTES = 2048
"""Of the 4096 that Kubernetes keeps."""


def leave(home: pathlib.Path, text: str, place: pathlib.Path = PLACE) -> bool:
    """Write it; what the user's program has written there stays.

    Args:
        home: of the shared volume; in another place than a pod's the log is not this container's.
        text: of the verdict.
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
        whole = text.encode(errors="replace")[:_MOST_BYTES].decode(errors="ignore")
        os.write(log, whole.encode())
    except OSError:
        return False
    finally:
        os.close(log)
    return True

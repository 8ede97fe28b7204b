# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Threads for the sidecar's copies, checksums and files, which give way to training.

Where sidecar and trainer share a control group (embedded, one machine) a checksum would take a core
from the step beside it; in pods the groups' shares decide, and this changes nothing.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading

_NICE = 10


def executor() -> concurrent.futures.Executor:
    """For asyncio.to_thread."""
    return concurrent.futures.ThreadPoolExecutor(
        thread_name_prefix="rover-background", initializer=_give_way
    )


def _give_way() -> None:
    # Of this thread alone: on Linux every thread has a priority of its own.
    own = threading.get_native_id()
    # A process that was started with nice may be lower already, and no way leads up again.
    os.setpriority(os.PRIO_PROCESS, own, max(_NICE, os.getpriority(os.PRIO_PROCESS, own)))

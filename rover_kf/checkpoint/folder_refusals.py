# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a folder's refusals mean, and what to do about them."""

from __future__ import annotations

import errno
import os

_FULL = "free some room, enlarge the volume, or let fewer stay (checkpoint.keep)"
_DENIED = "user {user} may not: change the folder's owner or mode, or the pod's fsGroup"


def why(cause: OSError) -> str:
    """In words, with what to do where that is known."""
    said = cause.strerror or str(cause)
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{said}; {_FULL}"
    if cause.errno in (errno.EACCES, errno.EPERM):
        return f"{said}; {_DENIED.format(user=os.geteuid())}"
    if cause.errno == errno.EROFS:
        return f"{said}; mount the volume so that it may be written"
    return said

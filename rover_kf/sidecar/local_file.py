# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a coordinator keeps in its pod's volume: it outlives the process, but not the pod."""

from __future__ import annotations

import logging
import pathlib
from typing import Protocol, TypeVar

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.system import shared_volume

_log = logging.getLogger(__name__)


class _Kept(Protocol):
    """A file's content."""

    @property
    def pod_uid(self) -> str:
        """Whose it is: a volume may outlive its pod where it runs embedded."""


T = TypeVar("T", bound=_Kept)


def read(path: pathlib.Path, kind: type[T], pod_uid: str, *, otherwise: str) -> T | None:
    """What was kept; None if there is nothing of this pod's that can be read.

    Args:
        path: of the file.
        kind: of its content.
        pod_uid: of this pod.
        otherwise: what follows if it cannot be read, for the log.
    """
    try:
        found = codec.loads(kind, shared_volume.read(path))
    except FileNotFoundError:
        return None
    except (OSError, errors.ProtocolError) as error:
        _log.warning("%s cannot be read, %s: %s", path, otherwise, error)
        return None
    return found if found.pod_uid == pod_uid else None

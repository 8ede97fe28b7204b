# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Policy defaults of the cluster: a ConfigMap mounted as a folder, one file for each key.

Read for each review, so that an edit takes effect without a restart. An edit with a mistake must
not stop every job from being created: it is logged, and the last good defaults stay.
"""

from __future__ import annotations

import logging
import pathlib

from rover_kf import errors
from rover_kf.injection.policy.rover_policy import RoverPolicy

_log = logging.getLogger(__name__)


class PolicyDefaults:
    """The newest defaults that are right.

    Args:
        folder: the ConfigMap's mount; None has no defaults.
    """

    def __init__(self, folder: pathlib.Path | None) -> None:
        self._folder = folder
        self._valid: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        """Key (without prefix) to value, e.g. ``{"checkpoint.every": "100"}``."""
        found = _files(self._folder)
        if found != self._seen:
            self._seen = found
            try:
                RoverPolicy.from_annotations({}, defaults=found)
            except errors.PolicyError as refusal:
                _log.error("policy defaults stay as they were: %s", refusal)
            else:
                self._valid = found
        return self._valid


def _files(folder: pathlib.Path | None) -> dict[str, str]:
    if folder is None or not folder.is_dir():
        return {}
    # The kubelet's own links in such a folder start with two dots.
    files = [item for item in folder.iterdir() if item.is_file() and item.name[0] != "."]
    return {item.name: item.read_text().strip() for item in sorted(files)}

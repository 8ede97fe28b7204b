# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster that somebody else made (kind, a real one), reached by its kubeconfig alone."""

from __future__ import annotations

import dataclasses
import pathlib

from testcluster.commands import run


@dataclasses.dataclass(frozen=True, slots=True)
class ForeignCluster:
    """What tests may do there: kubectl. Its nodes are not ours to stop.

    Args:
        kubeconfig: file given with --kubeconfig.
        program: kubectl; the one on PATH unless told otherwise.
    """

    kubeconfig: pathlib.Path
    program: str | pathlib.Path = "kubectl"

    def kubectl(self, *words: str, text: str | None = None, timeout: float = 120) -> str:
        """Run kubectl against it and return its output."""
        command = [self.program, "--kubeconfig", self.kubeconfig, *words]
        return run(command, text=text, timeout=timeout)

    def get_raw(self, path: str, *, timeout: float = 30) -> bytes:
        """GET a path of the API server."""
        return self.kubectl("get", "--raw", path, timeout=timeout).encode()

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the test cluster raises: one class, with the command's own words."""

from __future__ import annotations


class ClusterError(Exception):
    """The test cluster cannot do what was asked; the message says why and what to do."""


class CommandFailed(ClusterError):
    """A program ended with an error.

    Args:
        command: as it was run.
        code: its exit status.
        output: what it printed.
    """

    def __init__(self, command: str, code: int, output: str) -> None:
        super().__init__(f"exit status {code} of: {command}\n{output.strip()}")
        self.command, self.code, self.output = command, code, output

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf``: run, patch, watch and report training jobs from a terminal.

One module a group of verbs: ``plan`` and ``recommend`` (before a run), ``run`` (embedded), ``jobs``
(one job's life), ``past`` (history). Every verb is a few lines over RoverClient. Exit codes: 0
done, 1 it failed, 2 bad input (nothing was created), 130 interrupted.
"""

from __future__ import annotations

from rover_kf.cli.entry import main

__all__ = ["main"]

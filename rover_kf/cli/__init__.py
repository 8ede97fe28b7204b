# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf``: run, patch, watch and report training jobs from a terminal.

One module a group of verbs: ``recommend`` and ``patch`` (before a run), ``run`` (here),
``job_verbs`` (one job's life), ``history``, ``top`` and ``doctor`` (all jobs, the cluster). Every
verb is a few lines over RoverClient. What exit codes mean stands in ``exit_codes``.
"""

from __future__ import annotations

from rover_kf.cli.main import main

__all__ = ["main"]

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many training processes torchrun starts in a pod, which it does not tell its handlers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch


def count(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Processes of this pod.

    Args:
        argv: torchrun's command line.
        environment: of torchrun.
    """
    return _processes(_stated(argv, environment))


def _stated(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    for position, word in enumerate(argv):
        option, _, value = word.replace("_", "-").partition("=")
        if option == "--nproc-per-node":
            return value or argv[position + 1]
    return environment.get("PET_NPROC_PER_NODE", "1")


def _processes(wanted: str) -> int:
    if wanted.isdecimal():
        return int(wanted)
    accelerators = torch.cuda.device_count() if wanted in ("auto", "gpu") else 0
    return accelerators or os.cpu_count() or 1

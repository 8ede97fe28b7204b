# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks forked from a process that has imported what they need: seconds saved for each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch


def run(environments: Sequence[dict[str, str]], work: Callable[[], None]) -> list[int]:
    """Run the work in a process a rank; their exit codes, negative for a signal."""
    ranks = []
    for environment in environments:
        rank = os.fork()
        if not rank:
            os.environ.update(environment)
            torch.set_num_threads(1)
            work()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
            os._exit(0)
        ranks.append(rank)
    return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]

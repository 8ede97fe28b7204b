# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks forked from a process that has imported what they need: seconds saved for each of them."""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence

import torch
import torch._dynamo  # The first step of an optimizer imports it, for more than a second.

from rover_kf.launcher import worker


def start(environments: Sequence[dict[str, str]], work: Callable[[], None]) -> list[int]:
    """Begin the work in a process a rank; their numbers."""
    ranks = []
    for environment in environments:
        rank = os.fork()
        if not rank:
            os.environ.update(environment)
            torch.set_num_threads(1)
            _end(work)
        ranks.append(rank)
    return ranks


def _end(work: Callable[[], None]) -> None:
    """Do it and end the process, as a launcher's worker does: what it has inherited is not taken
    apart, which takes seconds."""
    try:
        work()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    except SystemExit as ended:
        worker.end(int(ended.code or 0))
    except BaseException:  # noqa: BLE001 - the process's last word
        traceback.print_exc()
        worker.end(1)
    os._exit(0)


def wait(ranks: Sequence[int]) -> list[int]:
    """Exit codes of processes once all have ended, negative for a signal."""
    return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]


def run(environments: Sequence[dict[str, str]], work: Callable[[], None]) -> list[int]:
    """Do the work in a process a rank; their exit codes."""
    return wait(start(environments, work))


def serve(work: Callable[[dict], None]) -> None:
    """Run a world for each line of standard input; answer with the ranks' numbers when they have
    begun, and with their exit codes when all have ended.

    Args:
        work: of one rank, given the line: JSON, the ranks' environments under ``ranks``.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What ranks print is no answer.
    for line in sys.stdin:
        asked = json.loads(line)
        ranks = start(asked["ranks"], functools.partial(work, asked))
        print(json.dumps(ranks), file=answers, flush=True)
        print(json.dumps(wait(ranks)), file=answers, flush=True)

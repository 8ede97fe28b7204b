# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks of a world that stands still: who stands alike, and whom the others wait for; pure.

The text is what Python's faulthandler writes: threads newest first, so that the main thread comes
last, and each thread's innermost call first.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping

from rover_kf.api.faults.hang_reports import RankStack, StackGroup

MAX_GROUPS = 16
LONGEST_TEXT = 16 << 10
"""Characters of one group's stacks."""
MAX_LOCATION_LENGTH = 200
MAX_RANKS_SHOWN = 8

_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(Current thread|Thread)(?: 0x[0-9a-f]+)?", re.MULTILINE)
_WAITS = ("/torch/distributed/", "/torch/autograd/", "/torch/cuda/", "/rover_kf/trainer/")
"""Folders whose code waits for other ranks: collectives, the backward pass that holds them, a
device that executes them, a restore."""
_NOT_THE_SCRIPT = ("/lib/python", "/site-packages/", "/dist-packages/", "/rover_kf/", "<frozen ")


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.path.rpartition('/')[2]}:{self.line})"


def main_thread(text: str) -> tuple[Frame, ...]:
    """The main thread's calls, innermost first; empty if the text holds none."""
    last = _THREAD.split(text)[-1]
    found = _FRAME.findall(last)
    return tuple(Frame(path, int(line), function) for path, line, function in found)


def main_thread_location(text: str) -> str:
    """Where the main thread stands: its innermost call, and the script's own that led there."""
    frames = main_thread(text)
    if not frames:
        return ""
    script = next((one for one in frames if _is_script_frame(one)), frames[0])
    called = "" if script is frames[0] else f", called by {script}"
    return f"{frames[0]}{called}"[:MAX_LOCATION_LENGTH]


def in_collective(text: str) -> bool:
    """Whether the main thread stands in something that ends when other ranks arrive."""
    frames = main_thread(text)
    return bool(frames) and any(folder in frames[0].path for folder in _WAITS)


def missing_ranks(stacks: Mapping[int, RankStack], world: Collection[int]) -> frozenset[int]:
    """The ranks that the others wait for, as far as their stacks tell; empty if they do not.

    Args:
        stacks: by rank, as far as they came.
        world: all ranks.
    """
    waiting = {rank for rank in world if rank in stacks and in_collective(stacks[rank].text)}
    rest = frozenset(world) - waiting
    if waiting and rest:
        # Of those that do not wait, one that gave no stack at all is dead or stopped.
        mute = {rank for rank in rest if rank not in stacks or not stacks[rank].text}
        return frozenset(mute) or rest
    return frozenset()


def group_stacks(
    stacks: Iterable[RankStack], late_ranks: Collection[int]
) -> tuple[StackGroup, ...]:
    """Ranks that stand alike together, those that others wait for first; bounded."""
    alike: dict[tuple[str, str, bool], list[int]] = collections.defaultdict(list)
    for one in sorted(stacks, key=lambda stack: stack.rank):
        text = _THREAD.sub(r"\1", one.text)[:LONGEST_TEXT]
        alike[one.state, text, one.rank in late_ranks].append(one.rank)
    found = [
        StackGroup(tuple(ranks), state, main_thread_location(text), is_late, text)
        for (state, text, is_late), ranks in alike.items()
    ]
    found.sort(key=lambda group: (not group.late, len(group.ranks), group.ranks))
    return tuple(found[:MAX_GROUPS])


def format_ranks(ranks: Collection[int], pods: Mapping[int, str]) -> str:
    """``rank 3 (train-worker-1)``; of many the first ones and how many there are."""
    named = [f"{rank} ({pods[rank]})" if rank in pods else str(rank) for rank in sorted(ranks)]
    more = len(named) - MAX_RANKS_SHOWN
    shown = ", ".join(named[:MAX_RANKS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"rank{'s' if len(named) > 1 else ''} {shown}"


def _is_script_frame(frame: Frame) -> bool:
    return not any(part in frame.path for part in _NOT_THE_SCRIPT)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which folders of a storage may go; pure.

Decided anew each time from what is there, so that it survives crashes and restarts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.states import NO_STATE, RoundId, State
from rover_kf.checkpoint.format.manifest import CheckpointFolder


@dataclasses.dataclass(frozen=True, slots=True)
class KeepBest:
    """Keep the best ones by what the script measured."""

    metric: str
    highest: bool
    """Whether more is better."""
    count: int

    @classmethod
    def parse(cls, text: str) -> KeepBest:
        """Read ``metric:max:count`` or ``metric:min:count``.

        Raises:
            InputError: it is something else.
        """
        match = re.fullmatch(names.KEEP_BEST_PATTERN, text)
        if match is None:
            raise errors.InputError(f"{text!r} is not of the form metric:max:count, or :min:")
        return cls(match[1], match[2] == "max", int(match[3]))

    def __str__(self) -> str:
        return f"{self.metric}:{'max' if self.highest else 'min'}:{self.count}"


@dataclasses.dataclass(frozen=True, slots=True)
class RetentionExceptions:
    """Which checkpoints stay though newer ones are there."""

    every: int = 0
    """Those whose step it divides stay for good; 0: none does."""
    best: KeepBest | None = None
    """So many of the best stay, of equal ones the newer; what it was not measured of does not
    count."""

    def select(
        self, valid: Mapping[CheckpointFolder, Mapping[str, float]]
    ) -> frozenset[CheckpointFolder]:
        """Those that stay.

        Args:
            valid: what was measured of each whole checkpoint.
        """
        divided = {folder for folder in valid if self.every and folder.step % self.every == 0}
        best = self.best
        if best is None:
            return frozenset(divided)
        sign = 1 if best.highest else -1
        measured = [folder for folder, metrics in valid.items() if best.metric in metrics]
        measured.sort(key=lambda folder: (sign * valid[folder][best.metric], folder))
        return frozenset(divided.union(measured[-best.count :]))


KEEP_NEWEST = RetentionExceptions()
"""Only the newest stay."""


def deletable(
    folders: Iterable[CheckpointFolder],
    valid: Sequence[CheckpointFolder],
    unfinished: Iterable[CheckpointFolder] = (),
    *,
    keep: int,
    current: RoundId,
    spared: Collection[CheckpointFolder] = (),
    below: State = NO_STATE,
) -> tuple[CheckpointFolder, ...]:
    """Folders to remove.

    Args:
        folders: all of the job's.
        valid: of these, the whole checkpoints.
        unfinished: of these, those without a manifest.
        keep: how many of the newest good ones stay; the newest one always does.
        current: the running round.
        spared: good ones that stay besides.
        below: a state of this round; nobody writes an older one any more.

    Returns:
        Unfinished ones of this round below that step; good ones beyond ``keep`` that are not
        spared; and of the others (unfinished or damaged) those that nobody can be writing any more:
        of an older round, or older than the newest good one of its round.
        With nothing good at all, the first alone: a damaged checkpoint may be all that a person has
        left.
    """
    given_up = {f for f in unfinished if f.state.round == current and f.state < below}
    if not valid:
        return tuple(sorted(given_up))
    kept = sorted(valid)[-max(keep, 1) :]
    newest = kept[-1]
    return tuple(
        folder
        for folder in sorted(folders)
        if folder not in kept
        and folder not in spared
        and (
            folder in valid
            or folder in given_up
            or folder.state.round < current
            or (newest.state.round == folder.state.round and folder < newest)
        )
    )

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which folders of a storage may go; pure.

Decided anew each time from what is there, so that it survives crashes and restarts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rover_kf.checkpoint.manifest import Folder


def doomed(
    folders: Iterable[Folder], good: Sequence[Folder], *, keep: int, generation: int
) -> tuple[Folder, ...]:
    """Folders to remove.

    Args:
        folders: all of the job's.
        good: of these, the whole checkpoints.
        keep: how many of the newest good ones stay; the newest one always does.
        generation: of the running round.

    Returns:
        Good ones beyond ``keep``; and of the others (unfinished or damaged) those that nobody can
        be writing any more: of an older generation, or of an older step than the newest good one
        of this generation. With nothing good at all, nothing goes: a damaged checkpoint may be all
        that a person has left.
    """
    if not good:
        return ()
    kept = sorted(good)[-max(keep, 1) :]
    newest = kept[-1]
    return tuple(
        folder
        for folder in sorted(folders)
        if folder not in kept
        and (
            folder in good
            or folder.generation < generation
            or (newest.generation == folder.generation and folder.step < newest.step)
        )
    )

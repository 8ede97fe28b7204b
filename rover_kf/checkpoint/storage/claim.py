# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who may change a job's checkpoints on storage: one owner, and its newest coordinator.

``owner.json`` names the job. It is created exclusively, so of two jobs that begin at once one is
rejected. Below ``generations/`` each coordinator leaves an empty file named by its generation. A
coordinator that finds a greater one has been replaced (a fencing token): it commits and removes
nothing any more. Its late checkpoints harm nobody: their rounds sort below the successor's.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Collection
from typing import Protocol

from rover_kf import errors
from rover_kf.api import names

OWNER_FILE = "owner.json"
GENERATIONS = "generations"
MAX_BYTES = 4096
"""Of the owner's file."""
_PAUSES = (0.05, 0.1, 0.2, 0.4)
"""Seconds before the owner's file is looked at again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What a coordinator states of itself."""

    owner: str
    """``namespace/name`` of its job."""
    generation: int
    adopt_from: str = ""
    """Owner whose checkpoints the user gives to this job; empty: nobody's."""


class ClaimFiles(Protocol):
    """The small files of a storage, by their names below the job's folder."""

    location: str
    """The job's folder, as a person would name it."""

    def read_small(self, name: str) -> bytes | None:
        """A file's bytes; None if there is none."""

    def create_small(self, name: str, content: bytes) -> bool:
        """Write a file, safe when it returns; False if there is one of that name."""

    def replace_small(self, name: str, content: bytes) -> None:
        """Write a file in place of the one that is there, safe when it returns."""

    def list_small(self, folder: str) -> Collection[str]:
        """Names of the files of a folder; none if there is no such folder."""

    def remove_small(self, name: str) -> None:
        """Remove a file; one that is gone is no error."""


def claim(files: ClaimFiles, stated: Claim) -> None:
    """Claim a job's folder, or check that the claim still holds.

    Raises:
        NotOwner: another job owns the folder.
        Superseded: a later coordinator of this job has replaced this one.
        StorageError: the storage refused.
    """
    _claim_owner(files, stated)
    generations = _generations(files)
    if stated.generation < max(generations, default=0):
        raise errors.Superseded(
            f"{files.location} is written by generation {max(generations)} of this job's "
            f"coordinator, which has replaced this one, generation {stated.generation}; this one "
            "changes nothing there any more"
        )
    if stated.generation not in generations:
        files.create_small(_marker(stated.generation), b"")
    for older in generations:
        if older < stated.generation:
            files.remove_small(_marker(older))


def last_generation(files: ClaimFiles) -> int:
    """The greatest generation that has claimed the folder; 0: none has.

    Raises:
        StorageError: the storage cannot be read.
    """
    return max(_generations(files), default=0)


def _claim_owner(files: ClaimFiles, stated: Claim) -> None:
    content = json.dumps({"owner": stated.owner}).encode()
    found = _read_or_create_owner(files, content)
    owner = _parse_owner(files, found)
    if owner == stated.owner:
        return
    if owner != stated.adopt_from:
        raise errors.NotOwner(
            f"{files.location} belongs to the job {owner}, and this job is {stated.owner}. Give "
            f"this job another {names.PREFIX}checkpoint.path; or, if it continues that job, set "
            f"{names.PREFIX}checkpoint.adopt-from: {owner}"
        )
    files.replace_small(OWNER_FILE, content)


def _read_or_create_owner(files: ClaimFiles, content: bytes) -> bytes:
    """Return the owner's file, which is created with this content if there is none."""
    for pause in _PAUSES:
        found = files.read_small(OWNER_FILE)
        if found:
            return found
        if found is None and files.create_small(OWNER_FILE, content):
            return content
        # Another coordinator writes it: a store refuses a second one before the first can be read.
        time.sleep(pause)
    raise errors.StorageError(
        f"{files.location}/{OWNER_FILE} is empty: another coordinator is writing it, and it is "
        "read again at the next commit. If it stays empty, that writer was killed: remove it"
    )


def _parse_owner(files: ClaimFiles, content: bytes) -> str:
    try:
        owner = json.loads(content)["owner"]
    except (ValueError, KeyError, TypeError) as cause:
        raise errors.NotOwner(
            f"{files.location}/{OWNER_FILE} cannot be read ({cause}): nobody knows which job these "
            "checkpoints belong to. Remove that file if they are this job's"
        ) from cause
    return str(owner)


def _generations(files: ClaimFiles) -> Collection[int]:
    found = files.list_small(GENERATIONS)
    return {int(name) for name in found if name.isascii() and name.isdecimal()}


def _marker(generation: int) -> str:
    return f"{GENERATIONS}/{generation}"

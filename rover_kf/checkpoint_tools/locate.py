# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints a path means: all of a job's, or one."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import stat

from rover_kf import errors
from rover_kf.api import names
from rover_kf.checkpoint.format import manifest
from rover_kf.checkpoint.format.manifest import CheckpointFolder
from rover_kf.checkpoint.storage import verification
from rover_kf.checkpoint.storage.factory import open_storage
from rover_kf.checkpoint.storage.storage_protocol import Storage
from rover_kf.checkpoint_tools.inspection import abbreviate, was_removed

_ALLOWED = "a job's folder <checkpoint.path>/<job>, one checkpoint folder of it, or the URL of one"


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """What a person named."""

    text: str
    storage: Storage
    selected: CheckpointFolder | None
    """The one checkpoint that was named; None: the whole job."""

    def folders(self) -> tuple[CheckpointFolder, ...]:
        """Every folder that is meant, oldest first; they may hold a whole checkpoint or not.

        Raises:
            InputError: the one that was named is not there.
            StorageError: the storage cannot be read.
        """
        if self.selected is None:
            return self.storage.folders()
        self._check_exists(self.selected)
        return (self.selected,)

    def checkpoint(self, step: int | None = None) -> CheckpointFolder:
        """The one checkpoint that is meant: the named one, or the job's newest that is whole.

        Args:
            step: of which; None: of any.

        Raises:
            InputError: there is none.
            UnknownFormat: another release wrote the newest.
            StorageError: the storage cannot be read.
        """
        if self.selected is not None:
            if step not in (None, self.selected.step):
                raise errors.InputError(
                    f"{self.text} is step {self.selected.step}, not step {step}"
                )
            self._check_exists(self.selected)
            return self.selected
        found = self.storage.folders()
        for folder in reversed(found):
            if step in (None, folder.step) and self._is_selected(folder, step):
                return folder
        which = "" if step is None else f" of step {step}"
        there = abbreviate([str(step) for step in sorted({folder.step for folder in found})])
        raise errors.InputError(
            f"{self.text} has no whole checkpoint{which}; folders of steps: {there} "
            "(rover-kf checkpoint ls tells what is wrong with them)"
        )

    def _is_selected(self, folder: CheckpointFolder, step: int | None) -> bool:
        """Whether it has a manifest and, where no step is named, its files in their sizes."""
        sizes = self.storage.sizes(folder)
        if manifest.NAME not in sizes:
            return False
        try:
            if step is None:
                verification.check_sizes(folder, self.storage.read_manifest(folder), sizes)
        except errors.UnknownFormat:
            raise  # an older one is not what was asked for
        except errors.CorruptSnapshot:
            return False
        except errors.StorageError:
            if not was_removed(self.storage, folder):
                raise
            return False
        return True

    def _check_exists(self, selected_folder: CheckpointFolder) -> None:
        """A bucket has no folders: of a name that nothing is below there is no checkpoint."""
        if (
            not self.storage.sizes(selected_folder)
            and not pathlib.Path(selected_folder.location).is_dir()
        ):
            there = abbreviate([folder.name for folder in self.storage.folders()])
            raise errors.InputError(f"{self.text} is not there; checkpoints of the job: {there}")


def locate(path: str) -> CheckpointLocation:
    """Open what a person named; an object store is not asked anything yet.

    Args:
        path: a job's folder or one checkpoint folder of it, as a path or a URL.

    Raises:
        InputError: it is no such thing.
        StorageError: the file system does not say what it is.
    """
    if not path:
        raise errors.InputError(f"the path is empty; allowed: {_ALLOWED}")
    _check_url(path)
    is_url, text = path.startswith(names.OBJECT_SCHEMES), absolute_location(path)
    if not is_url and not _is_folder(text):
        raise errors.InputError(f"{path} is no folder; allowed: {_ALLOWED}")
    named = manifest.parse_folder(text)
    job = text.rpartition("/")[0] if named else text
    parent, _, name = job.rpartition("/")
    if is_url and not parent.startswith(names.OBJECT_SCHEMES):
        raise errors.InputError(f"{path} names no job; allowed: {_ALLOWED}")
    storage = open_storage(parent or "/", name)
    place = CheckpointLocation(path, storage, storage.folder(named.state) if named else None)
    if not is_url:
        _check_level(place, pathlib.Path(text))
    return place


def absolute_location(path: str) -> str:
    """A path or a URL as a checkpoint's location is written."""
    if path.startswith(names.OBJECT_SCHEMES):
        return path.rstrip("/")
    return str(pathlib.Path(path).resolve())


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(pathlib.Path(path).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as cause:
        raise errors.StorageError(f"{path} cannot be looked at: {cause.strerror}") from cause


def _check_url(path: str) -> None:
    """Refuse what no job's policy takes, without showing it: a key may be in it."""
    scheme, is_url, _ = path.partition("://")
    if is_url and not re.fullmatch(names.OBJECT_URL, path):
        raise errors.InputError(
            f"{scheme}://… is no URL of a job's checkpoints; allowed: one such as "
            "s3://bucket/prefix/job (s3, gs, az) without a user, a password or a query. Keys come "
            "from variables in the environment, such as AWS_ACCESS_KEY_ID"
        )


def _check_level(location: CheckpointLocation, folder: pathlib.Path) -> None:
    """One level too high is an easy mistake: say which jobs there are."""
    if location.folders():
        return
    jobs = sorted({found.parent.name for found in folder.glob("*/step-*-*/")})
    if jobs:
        raise errors.InputError(f"{location.text} holds jobs, not checkpoints; name one: {jobs}")

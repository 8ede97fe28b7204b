# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Files of which each is a sample: images, recordings, documents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rover_kf import errors
from rover_kf.datasets import sample_files
from rover_kf.datasets.files import Sources

_log = logging.getLogger("rover_kf")


class FileSample(NamedTuple):
    """A file as ``decode`` gets it; a batch of them is one of lists."""

    name: str
    """Below the folder that was given, as ``cat/3.jpg``."""
    content: bytes
    label: int
    """Which of the data set's ``classes`` its outermost folder is; -1: it lies in none."""


class FileDataset:
    """Each file of folders, or of an object store, as a sample.

    ::

        def picture(file):
            image = Image.open(io.BytesIO(file.content)).convert("RGB")
            return transform(image), file.label


        images = FileDataset("/data/train", decode=picture, endings=(".jpg", ".png"))
        loader = ElasticDataLoader(images, batch_size=256, num_workers=4)

    Args:
        sources: files, or folders of them with those below; or addresses that pyarrow knows
            (s3://, gs://, hdfs://).
        decode: makes a sample of a FileSample; that itself if not given. Runs where data are read.
        endings: of the names of files in folders; none: all files.
        stand_in: gives the sample that counts in place of a file that ``decode`` raises for, by its
            name, which a warning tells; if not given that is an error.

    Raises:
        InputError: there are no such files.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        decode: Callable[[FileSample], Any] | None = None,
        endings: Sequence[str] = (),
        stand_in: Callable[[str], Any] | None = None,
    ) -> None:
        self._files = sample_files.discover(sources, endings)
        self._decode, self._stand_in = decode, stand_in
        self.classes = self._files.folders()
        """Names of the folders right below the sources, sorted; labels are places in them."""
        self._labels = {folder: label for label, folder in enumerate(self.classes)}
        self.fingerprint = self._files.fingerprint()
        """Of all files' names and sizes, not of their contents."""

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> Any:
        """Read a file and make a sample of it.

        Raises:
            IndexError: there is no such file.
            DatasetReadError: it is gone, was changed, cannot be read, or ``decode`` raised.
        """
        place, file = self._files.get(number)
        folder, slash, _ = file.name.partition("/")
        label = self._labels[folder] if slash else -1
        sample = FileSample(file.name, place.read(file), label)
        if self._decode is None:
            return sample
        try:
            return self._decode(sample)
        except errors.RoverError:
            raise
        except Exception as cause:  # decode is the user's and may raise anything
            told = f"{place.path(file.name)}: {type(cause).__name__}: {cause}"
            if self._stand_in is None:
                raise errors.DatasetReadError(
                    f"of this file decode makes no sample: {told}; mend the file or leave it out, "
                    "or have something else count in its place (stand_in)"
                ) from cause
            _log.warning("rover-kf: something else counts in place of a file: %s", told)
        return self._stand_in(file.name)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A Secret as the kubelet mounts it: links to files of a folder that is exchanged as a whole."""

from __future__ import annotations

import itertools
import pathlib
import shutil
from collections.abc import Mapping


class MountedSecret:
    """One volume.

    Args:
        folder: where it is mounted; made here.
        content: of the Secret.
    """

    def __init__(self, folder: pathlib.Path, content: Mapping[str, str]) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        folder.mkdir(parents=True)
        self.change(content)

    def change(self, content: Mapping[str, str]) -> None:
        """The Secret has another content: other files, at once."""
        data, former = self.folder / "..data", (self.folder / "..data").resolve()
        made = self.folder / f"..of-{next(self._numbers)}"
        made.mkdir()
        for name, value in content.items():
            (made / name).write_text(value)
        aside = self.folder / "..data_tmp"
        aside.symlink_to(made.name)
        aside.rename(data)
        for name in content:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        for link in self.folder.iterdir():
            if not link.name.startswith("..") and link.name not in content:
                link.unlink()
        if former not in (made, data):
            shutil.rmtree(former)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's volumes as folders, and its mounts by rewriting paths; used by ``plan`` and ``pod``.

Without root nothing can be mounted: where an argument or a variable names a mountPath, the
folder behind it is put in its place. Memory-backed volumes get a short path of their own, since
a Unix socket's path has room for 107 bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Mounts:
    """What one container sees where: mount path to folder."""

    paths: Mapping[str, pathlib.Path]

    def rewrite(self, text: str) -> str:
        """Put folders in place of mount paths at the text's start or after ``=``, ``:``, ``,``."""
        if not self.paths:
            return text
        roots = {mount.rstrip("/"): str(folder) for mount, folder in self.paths.items()}
        longest_first = "|".join(re.escape(root) for root in sorted(roots, key=len, reverse=True))
        pattern = rf"(^|[=:,])({longest_first})(?=$|[/:,])"
        return re.sub(pattern, lambda hit: hit[1] + roots[hit[2]], text)


@dataclasses.dataclass(frozen=True, slots=True)
class Volumes:
    """Folders of one pod's volumes."""

    folders: Mapping[str, pathlib.Path]
    """By volume name."""
    memory: tuple[pathlib.Path, ...]
    """Memory-backed emptyDirs."""
    work: tuple[pathlib.Path, ...]
    """Other emptyDirs."""

    def create(self) -> None:
        """Make the pod's own folders and the claims' ones; what is there stays."""
        for folder in self.folders.values():
            folder.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Remove the pod's own folders; claims and host paths stay."""
        for folder in (*self.memory, *self.work):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in {folder.parent for folder in self.work}:
            with contextlib.suppress(OSError):  # it was not made, or somebody looks into it
                folder.rmdir()

    def mounts(self, container: Mapping[str, Any]) -> Mounts:
        """A container's mounts."""
        return Mounts(
            {
                mount["mountPath"]: self.folders[mount["name"]] / mount.get("subPath", "")
                for mount in container.get("volumeMounts") or []
            }
        )


def prepare_volumes(
    pod: Mapping[str, Any], uid: str, *, memory: pathlib.Path, job: pathlib.Path, root: pathlib.Path
) -> Volumes:
    """Say where each volume of a pod is.

    Args:
        pod: the pod's spec.
        uid: of the pod; makes its own volumes' names unique.
        memory: where memory-backed volumes go.
        job: the job's folder.
        root: the state folder, which has the claims.
    """
    folders: dict[str, pathlib.Path] = {}
    in_memory, on_disk = [], []
    for index, volume in enumerate(pod.get("volumes") or []):
        name = volume["name"]
        if "persistentVolumeClaim" in volume:
            folders[name] = root / "volumes" / volume["persistentVolumeClaim"]["claimName"]
        elif "hostPath" in volume:
            folders[name] = pathlib.Path(volume["hostPath"]["path"])
        elif "projected" in volume:
            folders[name] = job / "token"
        elif (volume.get("emptyDir") or {}).get("medium") == "Memory":
            folders[name] = memory / f"rkf-{uid[:8]}-{index}"
            in_memory.append(folders[name])
        else:
            folders[name] = job / "work" / uid[:8] / name
            on_disk.append(folders[name])
    return Volumes(folders, tuple(in_memory), tuple(on_disk))

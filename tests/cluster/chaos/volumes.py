# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Volumes that take nothing more: contexts, which heal them when they end."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

from chaos.faults import Fault
from chaos.scene import SIDECAR, Scene
from rover_kf.api import names

_BLOCKS = (1 << 20, 1 << 12)
"""Bytes at once: where the larger find no room the smaller still do."""


def full_memory(role: str) -> Fault:
    """The volume that a pod's arena is in has no byte left."""

    @contextlib.contextmanager
    def full(scene: Scene) -> Iterator[None]:
        process = scene.trainer(role)
        place = pathlib.Path(f"/proc/{process.pid}/root{names.HOME}") / "filled"
        try:
            _fill(place)
            yield
        finally:
            # The process may be gone by now, its pod and volume not.
            for root in (place, _seen_by(scene, role) / "filled"):
                root.unlink(missing_ok=True)

    return full


@contextlib.contextmanager
def full_disk(scene: Scene) -> Iterator[None]:
    """The disk that checkpoints go to has no byte left."""
    place = scene.checkpoints / "filled"
    try:
        _fill(place)
        yield
    finally:
        place.unlink(missing_ok=True)


@contextlib.contextmanager
def storage_refuses(scene: Scene) -> Iterator[None]:
    """Nothing can be written where checkpoints go."""
    folders = [scene.checkpoints, *scene.checkpoints.rglob("*")]
    modes = {path: path.stat().st_mode for path in folders if path.is_dir()}
    for path in modes:
        path.chmod(0o555)
    try:
        yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def _fill(place: pathlib.Path) -> None:
    with place.open("wb", buffering=0) as file:
        for size in _BLOCKS:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def _seen_by(scene: Scene, role: str) -> pathlib.Path:
    return pathlib.Path(f"/proc/{scene.first_of(role, SIDECAR).pid}/root{names.HOME}")

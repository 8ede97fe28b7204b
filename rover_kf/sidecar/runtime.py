# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``python -m rover_kf.sidecar.runtime DEST``: put the runtime where the user's image finds it.

Run by the init container. Copies the part of rover_kf that needs only the standard library and
torch, with rover-run and rover_run.py on top, and the metadata by which torchrun finds our
rendezvous. Whole or not at all, and the same when run again: the copy is made aside and renamed.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys

import rover_kf
from rover_kf.api import names

PACKAGES = (
    "api",
    "checkpoint",
    "data_sharding",
    "datasets",
    "elastic",
    "launcher",
    "system",
    "trainer",
)
FILES = ("__init__.py", "errors.py", "py.typed")
ENTRIES = ("rover-run", "rover_run.py")
METADATA = f"Metadata-Version: 2.1\nName: rover-kf\nVersion: {rover_kf.__version__}\n"
HANDLERS = "[torchrun.handlers]\nrover = rover_kf.launcher.torch_rendezvous:creator\n"
"""As in pyproject.toml."""


def install(destination: pathlib.Path) -> None:
    """Copy the runtime to the folder, and make the folders that all containers share."""
    source = pathlib.Path(rover_kf.__file__).resolve().parent
    destination.parent.mkdir(parents=True, exist_ok=True)
    aside = destination.with_name(f".{destination.name}-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    package = aside / "rover_kf"
    package.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(source / name, package / name)
    for name in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__", *ENTRIES)
        shutil.copytree(source / name, package / name, ignore=ignore)
    for name in ENTRIES:
        shutil.copy(source / "launcher" / name, aside / name)
    known = aside / f"rover_kf-{rover_kf.__version__}.dist-info"
    known.mkdir()
    (known / "METADATA").write_text(METADATA)
    (known / "entry_points.txt").write_text(HANDLERS)
    _make_readable(aside)
    shutil.rmtree(destination, ignore_errors=True)
    aside.replace(destination)
    for name in (names.RUN_DIR, names.ARENA_DIR):
        folder = destination.parent / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)


def _make_readable(folder: pathlib.Path) -> None:
    # Whatever the init container's umask: any user of the pod reads it.
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.name in ENTRIES else 0o644)


def main() -> int:
    """Entry; returns the exit code."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and its one argument
        sys.stderr.write("usage: python -m rover_kf.sidecar.runtime DESTINATION\n")
        return names.EXIT_USAGE
    install(pathlib.Path(sys.argv[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A virtual environment for each peer, made once in the cache.

It has the peer's own packages, in the versions of its requirements file, and sees all others (torch
above all: gigabytes, and the same for every system) in the environment that runs the benchmark.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
import subprocess
import sys
import sysconfig
import venv

HERE = pathlib.Path(__file__).parent
LONGEST_SECONDS = 600


class NotInstalled(Exception):
    """A peer's packages cannot be had here."""


def python_for(peer: str) -> pathlib.Path:
    """The interpreter of the peer's environment.

    Args:
        peer: name of a requirements file in this folder; without one: this very interpreter.

    Raises:
        NotInstalled: pip refuses; the message is its last line.
    """
    requirements = HERE / f"{peer}.txt"
    if not requirements.is_file():
        return pathlib.Path(sys.executable)
    base = sysconfig.get_path("purelib")
    key = hashlib.sha256(f"{requirements.read_text()}{base}{sys.version}".encode()).hexdigest()
    folder = _cache() / "peers" / f"{peer}-{key[:16]}"
    python = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            _make(folder, python, requirements, base)
    return python


def _make(
    folder: pathlib.Path, python: pathlib.Path, requirements: pathlib.Path, base: str
) -> None:
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=False).create(folder)
    (own,) = folder.glob("lib/python*/site-packages")
    # After the peer's own packages on sys.path, so that those come first.
    (own / "base.pth").write_text(base + "\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "-q",
            "--no-deps",
            "-r",
            requirements,
        ],
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"pip ended with {done.returncode}"]
        raise NotInstalled(f"not installed: {lines[-1]}")
    (folder / "ready").touch()


def _cache() -> pathlib.Path:
    return pathlib.Path(os.environ.get("ROVER_KF_CACHE") or pathlib.Path.home() / ".cache/rover-kf")

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Other Pythons of this machine, and virtual environments of them with another torch.

An environment is made once a machine, in the cache, and named by all that decides it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from testcluster import settings

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Minor version of the Python that runs the tests."""
_BUILD_SECONDS = 1500


@dataclasses.dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, with the torch that is installed beside it if there is one."""

    path: pathlib.Path
    version: str
    """Of Python: 3.10.13."""
    torch: str = ""

    @property
    def folder(self) -> pathlib.Path:
        """What has to stand on PATH for it to be found."""
        return self.path.parent


def find(minor: str) -> Interpreter | None:
    """This machine's Python of a minor version (``3.10``); None if there is none that starts."""
    for candidate in _candidates(minor):
        asked = [candidate, "-I", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0 and done.stdout.startswith(f"{minor}."):
            return Interpreter(candidate, done.stdout.strip())
    return None


def _candidates(minor: str) -> Iterator[pathlib.Path]:
    if minor == OWN:
        yield pathlib.Path(sys.executable)
    on_path = shutil.which(f"python{minor}")
    if on_path:  # one of pyenv is a script that may refuse to start
        yield pathlib.Path(on_path)
    root = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    yield from sorted(root.glob(f"versions/{minor}.*/bin/python{minor}"))


def with_packages(packages: pathlib.Path, minors: Sequence[str]) -> Interpreter:
    """An environment with exactly the packages of a list, built if the cache lacks it.

    Args:
        packages: a requirements file that pins every package, torch among them.
        minors: versions of Python that may run it; the first one that is here does.

    Raises:
        AssertionError: none of them is here, or the packages cannot be installed.
    """
    python = next(filter(None, map(find, minors)), None)
    assert python is not None, f"{packages.name} needs one of Python {', '.join(minors)}"
    key = hashlib.sha256(packages.read_bytes() + python.version.encode()).hexdigest()[:16]
    folder = settings.cache() / f"{packages.stem}-python{python.version}-{key}"
    build = [settings.REPOSITORY / ".ci" / "venv", python.path, folder, packages.resolve()]
    done = subprocess.run(
        build,
        cwd=settings.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{folder} cannot be made:\n{done.stdout}\n{done.stderr}"
    (torch,) = re.findall(r"^torch==(\S+)$", packages.read_text(), re.MULTILINE)
    return Interpreter(folder / "bin" / "python", python.version, torch)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pythons with other versions of torch; each environment is made once a machine (gigabytes each).

torch is paired with the Python that lies farthest from ours among those that are here and that it
has wheels for: so the oldest torch meets the oldest Python.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import torch
from testcluster import settings, tensorflow_environment

from tests.support import interpreters

PACKAGES = pathlib.Path(__file__).parent / "packages"
PYTHONS = {
    "2.4.1": ("3.10", interpreters.OWN, "3.12"),
    "2.9.1": ("3.13", "3.12", interpreters.OWN),
}
"""By torch: versions of Python, the one to be taken first in front."""


@pytest.fixture(scope="session")
def python_with():
    """Gives the interpreter with a version of torch; ``own`` is the one that runs the tests."""

    def make(version: str) -> interpreters.Interpreter:
        if version == "own":
            own = pathlib.Path(sys.executable)
            return interpreters.Interpreter(own, interpreters.OWN, torch.__version__)
        packages = PACKAGES / f"torch-{version}.txt"
        return interpreters.with_packages(packages, PYTHONS[version])

    return make


@pytest.fixture(scope="session")
def beside():
    """Gives the folder of a list's packages, to be put in front of ours; filled once a machine."""

    def make(name: str) -> str:
        listed = PACKAGES / f"{name}.txt"
        (first, *_) = re.findall(r"^[\w-]+==\S+$", listed.read_text(), re.MULTILINE)
        folder = settings.cache() / first.replace("==", "-")
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            options = ["--no-deps", "--no-build-isolation", "--target", folder, "-r", listed]
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", *options], check=True)
            (folder / "ready").touch()
        return str(folder)

    return make


@pytest.fixture(scope="session")
def tensorflow() -> pathlib.Path:
    """The interpreter of an environment that has TensorFlow and no torch."""
    return tensorflow_environment.folder() / "bin" / "python"

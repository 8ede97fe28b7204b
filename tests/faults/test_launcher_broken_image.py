# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An image in which torch cannot be loaded: the launcher ends with the reason, not never."""

from __future__ import annotations

import pathlib

import pytest

from rover_kf.api import names
from rover_kf.launcher.worker_group import MAX_STARTS
from tests.support.pods.launcher_pods import Job


@pytest.mark.timeout(120)
def test_an_image_without_a_torch_that_loads_ends_the_container(tmp_path: pathlib.Path):
    """Each try's own words stand in the log; the exit code asks for another container."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('no library for torch here')")
    with Job(1) as job:
        pod = job.add(0, job.script(), "1", first=str(tmp_path))
        assert pod.wait(90) == names.EXIT_RETRY
        said = pod.text()
        assert said.count("no library for torch here") == MAX_STARTS
        assert f"ended {MAX_STARTS} times before it was ready" in said

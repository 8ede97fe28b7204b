# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which storage a checkpoint path means."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rover_kf.api import names
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.checkpoint.storage.factory import open_storage
from rover_kf.checkpoint.storage.object_store import ObjectStorage
from tests.support.pods.sidecar_variables import ONE_POD, sidecar_variables

WITHOUT_CLIENT = """
import runpy, sys
sys.modules["obstore"] = None  # as if it were not installed
runpy.run_module("rover_kf.sidecar", run_name="__main__")
"""


@pytest.mark.parametrize("path", ["s3://bucket", "s3://bucket/", "gs://bucket", "az://bucket"])
def test_a_url_is_an_object_store(path):
    """With the job's name below it; nothing is asked of the store yet."""
    found = open_storage(path, "demo")
    assert isinstance(found, ObjectStorage)
    assert found.url == f"{path.rstrip('/')}/demo"


def test_a_path_is_a_folder(tmp_path):
    """Which is not made yet."""
    found = open_storage(str(tmp_path / "a"), "demo")
    assert isinstance(found, DirectoryStorage)
    assert found.root == tmp_path / "a" / "demo"
    assert list(tmp_path.iterdir()) == []


def test_a_sidecar_without_the_client_says_what_to_install(tmp_path):
    """At its start, in one line, with the exit code of a wrong input."""
    environment = os.environ | sidecar_variables(
        {
            **ONE_POD,
            names.ENV_HOME: str(tmp_path),
            names.ENV_AUTH: "shared",
            "checkpoint.path": "s3://bucket/x",
        }
    )
    command = [sys.executable, "-c", WITHOUT_CLIENT]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("rover-sidecar: ")
    assert "pip install 'rover-kf[storage]'" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1

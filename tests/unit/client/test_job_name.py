# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of both kinds on the command line, against an API server's stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.client.manifests import format_name, parse_name
from tests.support.faults.api_stand_in import serving
from tests.support.jobs.job_manifests import make_job

GROUP = "/apis/kubeflow.org/v1/namespaces/team"


@pytest.fixture
def server():
    """A job of each kind, both of one name."""
    with serving() as found:
        found.put(f"{GROUP}/pytorchjobs/wide", make_job(name="wide"))
        found.put(f"{GROUP}/tfjobs/wide", make_job(kind="TFJob", name="wide"))
        yield found


@pytest.fixture
def call(server, tmp_path):
    """A process of its own: the kubeconfig's place is read once in each."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "caller"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    told = {"KUBECONFIG": tmp_path / "config", "ROVER_KF_STATE": tmp_path, "COLUMNS": "200"}
    environment = {**os.environ, **{name: str(value) for name, value in told.items()}}

    def run(*words):
        whole = [sys.executable, "-m", "rover_kf.cli", "--on", "kubernetes", *words]
        done = subprocess.run(
            whole, env=environment, capture_output=True, text=True, timeout=250, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_tfjob_is_listed_and_called_by_its_kind(server, call):
    """What the list tells is what the other verbs take; the PyTorchJob of that name stays."""
    code, table = call("list", "-n", "team")
    assert code == 0, table
    assert [line.split()[1] for line in table.splitlines()[1:]] == ["wide", "tfjob/wide"]
    code, table = call("top")
    assert [line.split()[:2] for line in table.splitlines()[1:]] == [
        ["team", "wide"], ["team", "tfjob/wide"],
    ]  # fmt: skip
    code, told = call("list", "-n", "team", "-o", "json")
    assert [item["key"]["kind"] for item in json.loads(told)] == ["PyTorchJob", "TFJob"]
    before = len(server.requests)
    code, told = call("status", "tfjob/wide", "-n", "team", "-o", "json")
    assert (code, json.loads(told)["job"]) == (0, "wide")
    asked = {path for _, path, *_ in server.requests[before:]}
    assert f"{GROUP}/tfjobs/wide" in asked
    assert f"{GROUP}/pytorchjobs/wide" not in asked
    code, told = call("scale", "tfjob/wide", "3", "-n", "team")
    assert code != 0
    assert "its size is fixed: suspend it" in told
    assert call("delete", "tfjob/wide", "-n", "team") == (0, "tfjob/wide deleted\n")
    assert list(server.objects) == [f"{GROUP}/pytorchjobs/wide"]


@pytest.mark.parametrize("text", ["tfjob/wide", "TFJob/wide", "tfjobs/wide"])
def test_a_kind_is_written_as_for_kubectl(text):
    """In the singular, the plural, in capitals; a name alone is a PyTorchJob."""
    assert parse_name("team", text) == JobKey("team", "wide", "TFJob")
    assert format_name(parse_name("team", text)) == "tfjob/wide"
    assert (
        parse_name("team", "wide")
        == parse_name("team", "pytorchjob/wide")
        == JobKey("team", "wide")
    )
    assert format_name(JobKey("team", "wide")) == "wide"


@pytest.mark.parametrize("text", ["mpijob/wide", "tfjob/", "/wide/", ""])
def test_another_kind_is_refused(text):
    """With what may be given."""
    with pytest.raises(errors.InputError, match="pytorchjob/NAME or tfjob/NAME"):
        parse_name("team", text)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the verbs print: for people, for programs, for shells; none of it coloured in a pipe."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import yaml
from local_jobs import FOREVER, job, replica

from rover_kf.cli import main
from rover_kf.client import RoverClient, settings


@pytest.fixture
def running(tmp_path, monkeypatch):
    """Two jobs of this machine: one that runs, one that has ended."""
    monkeypatch.setenv("ROVER_KF_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("ROVER_KF_ON", raising=False)
    with RoverClient(config=settings.read({}, state=tmp_path / "state")) as rover:
        rover.submit(job("ended", worker=replica("exit 0")), inject=False)
        rover.wait("ended", timeout=60)
        rover.submit(job("steady", worker=replica(FOREVER)), inject=False)
        rover.wait("steady", until="Running", timeout=60)
        yield rover


@pytest.fixture
def call(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert end.value.code == 0, said.err
        return said.out

    return run


@pytest.mark.usefixtures("running")
def test_jobs_are_told_in_three_forms(call):
    """The same jobs, events and progress as a table, as JSON and as YAML; no colours in a pipe."""
    assert {item["key"]["name"] for item in json.loads(call("list", "-o", "json"))} == {
        "ended", "steady",
    }  # fmt: skip
    names = {item["key"]["name"] for item in yaml.safe_load(call("list", "-o", "yaml"))}
    assert names == {"ended", "steady"}
    told = json.loads(call("events", "ended", "-o", "json"))
    assert "PyTorchJobSucceeded" in {item["reason"] for item in told}
    assert json.loads(call("status", "steady", "-o", "json"))["phase"] == "Running"
    assert json.loads(call("history", "list", "-o", "json")) == []
    assert yaml.safe_load(call("explain", "steady", "-o", "yaml"))["replicas"] == 1
    one = (("events", "ended"), ("status", "steady"), ("explain", "steady"))
    for words in (("list",), ("top",), *one):
        text = call(*words)
        assert "\x1b" not in text
        assert "ended" in text or "steady" in text or "Succeeded" in text


@pytest.mark.usefixtures("running")
def test_top_shows_what_is_at_work(call):
    """Where no terminal is it looks once; jobs that have ended only when they are asked for."""
    assert "steady" in call("top")
    assert "ended" not in call("top")
    found = json.loads(call("top", "--all", "-o", "json"))
    assert [(item["job"], item["phase"]) for item in found] == [
        ("steady", "Running"), ("ended", "Succeeded"),
    ]  # fmt: skip


def test_a_dry_run_shows_the_difference(tmp_path, running, call):
    """run and submit print as a diff what patching would change, and create nothing."""
    (tmp_path / "train.py").write_text("print('trained')")
    manifest = job("new", worker=replica("", command=["python", "train.py"]))
    path = tmp_path / "new.yaml"
    path.write_text(yaml.safe_dump(manifest))
    shown = call("run", "--dry-run", path)
    assert re.search(r"(?m)^\+.*rover-sidecar", shown)
    assert "new" not in {found.key.name for found in running.list()}


@pytest.mark.usefixtures("running")
def test_a_table_in_a_pipe_is_as_wide_as_it_is(call, monkeypatch):
    """A terminal's width cuts nothing where none is: each row is a line, with the whole name."""
    monkeypatch.setenv("COLUMNS", "20")
    (row,) = (line for line in call("list").splitlines() if "steady" in line)
    assert "default" in row
    assert re.search(r"Running +1 worker +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", row)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_the_shell(call, shell):
    """It names our variable; where the shell is here, it accepts it."""
    script = call("completion", shell)
    assert "_ROVER_KF_COMPLETE" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=30)


def test_verbs_and_options_are_completed(capsys, monkeypatch):
    """What the shell asks for while one types is answered."""
    monkeypatch.setenv("_ROVER_KF_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "rover-kf doc")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        main([])
    assert "doctor" in capsys.readouterr().out

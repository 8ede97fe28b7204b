# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""docs/quickstart.md does what it says: its commands are run as they stand there."""

from __future__ import annotations

import concurrent.futures
import contextlib
import difflib
import json
import os
import pathlib
import re
import runpy
import shlex
import signal
import subprocess
import time

import pytest

from rover_kf.api.jobs import JobKey
from rover_kf.api.status import CoordinatorStatus
from rover_kf.cli import main
from tests.support.jobs.embedded_job import EmbeddedJob, client_in
from tests.support.waiting import eventually

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
SAMPLES = ROOT / "manifests" / "samples"
COMMANDS = [
    line.removeprefix("$ ")
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """What the commands need of a clone: the samples, at their place."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "samples").symlink_to(SAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROVER_KF_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def said(clone, capsys):  # noqa: ARG001 - the folder that it runs in
    """Run a command of the page to its good end; what it printed."""

    def run(command: str) -> str:
        program, *words = shlex.split(command)
        if program != "rover-kf":
            return subprocess.check_output(command, shell=True, text=True, timeout=60)
        # In this process: another one for each command would load everything anew.
        with pytest.raises(SystemExit) as end:
            main(words)
        told = capsys.readouterr()
        assert end.value.code == 0, f"{command}\n{told.out}\n{told.err}"
        return told.out

    return run


def test_the_page_shows_what_it_takes():
    """At most ten lines make the plain script elastic; the page shows each of them."""
    plain, elastic = ((SAMPLES / name).read_text() for name in ("plain.py", "elastic.py"))
    changes = difflib.unified_diff(_code(plain), _code(elastic), n=0, lineterm="")
    added = [line[1:].strip() for line in changes if re.match(r"\+(?!\+\+)\s*\S", line)]
    print(f"\n{len(added)} lines added: {added}")
    assert 0 < len(added) <= 10
    assert "rover" not in "".join(_code(plain)).lower()
    for line in added:
        assert line in PAGE


def _code(text: str) -> list[str]:
    """Without the docstring on top, which only tells."""
    return text.split('"""', 2)[2].splitlines()


@pytest.mark.torch
@pytest.mark.timeout(400)
def test_the_commands_do_what_the_page_says(clone, said, capsys):
    """A plain script trains; a checkpointed one goes on from memory after a kill; both are told."""
    begun = time.monotonic()
    first, logs, difference, second, *told = COMMANDS
    assert "first: Succeeded" in said(first)
    assert "trained by 1" in said(logs)
    assert "Checkpointer" in said(difference)
    # The page's minute is for who opens another terminal.
    second = second.replace("--pause 0.1", "--pause 0.02")
    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        killed = pool.submit(_killed_and_back, clone)
        said(second)
        before, after = killed.result()
    assert after.world_size == 2
    events, jobs, checkpoints = (said(command) for command in told)
    resumed = re.search(r"resumes at step (\d+) from memory", events)
    assert resumed, events
    assert int(resumed[1]) >= before.sealed_step
    assert {"first", "second"} <= set(re.findall(r"\w+", jobs))
    assert "600" in checkpoints
    assert (clone / "second.html").stat().st_size > 10_000
    traces = [set(names) for names in _traces(said("rover-kf trace second"))]
    assert {"recovery", "rendezvous", "restore", "first step"} in traces
    assert "tensor(3.)" in _notebook(clone, capsys)
    print(f"\nthe page's commands took {time.monotonic() - begun:.0f} s")


def _traces(printed: str) -> list[list[str]]:
    """Names of the spans of each trace."""
    found = json.loads(printed)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    each = dict.fromkeys(span["traceId"] for span in found)
    return [[span["name"] for span in found if span["traceId"] == trace] for trace in each]


def _notebook(clone: pathlib.Path, capsys) -> str:
    """Run the page's last example, from a file as a function's source has to be known."""
    (block,) = re.findall(r"```python\n(from rover_kf import RoverClient\n.*?)```", PAGE, re.DOTALL)
    (clone / "notebook.py").write_text(block)
    runpy.run_path(str(clone / "notebook.py"))
    told: str = capsys.readouterr().out
    return told


def _killed_and_back(clone: pathlib.Path) -> tuple[CoordinatorStatus, CoordinatorStatus]:
    """Kill a training process of the second job; what was known before, and once it was back."""
    with client_in(clone) as rover:
        job = EmbeddedJob(rover, JobKey("default", "second"))
        eventually(lambda: job.key in {found.key for found in rover.list()}, within=120)
        before = eventually(lambda: _saved(job), within=180, what="a step in memory")
        pod = rover.cluster.list_pods(job.key)[1]
        trainer = _trainer(f"rkf-{pod.uid[:8]}-")
        assert _chosen(clone) == trainer
        os.kill(trainer, signal.SIGKILL)
        return before, job.goes_on(before)


def _chosen(clone: pathlib.Path) -> int:
    """The process that the page's command would kill if no other clone's job had the name."""
    (command,) = re.findall(r"^kill -9 \$\((.*) \| tail -n 1\)$", PAGE, re.MULTILINE)
    named = subprocess.check_output(command, shell=True, text=True, timeout=60).split()
    here = str(clone).encode()
    mine = [pid for pid in named if here in _environment(pid)]
    return int(mine[-1])


def _environment(pid: str) -> bytes:
    """A process's variables; nothing of one that has ended, another test's mostly."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def _saved(job: EmbeddedJob) -> CoordinatorStatus | None:
    """What is known of the job once it trains and has a step in memory."""
    status = job.status()
    return (
        status if status is not None and status.phase == "training" and status.sealed_step else None
    )


def _trainer(memory: str) -> int:
    """The process, not the sidecar, that maps a slot of that memory."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            maps, line = (folder / "maps").read_text(), (folder / "cmdline").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if memory in maps and "/arena/" in maps and "rover_kf.sidecar" not in line:
            return int(folder.name)
    raise AssertionError(f"no process maps {memory}")

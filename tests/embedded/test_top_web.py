# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""`rover-kf top --web` on a real job, in a real Chromium: it follows what happens to the job."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse

import pytest

from tests.support.browser import browser
from tests.support.jobs.embedded_job import EmbeddedJob, client_in
from tests.support.jobs.job_manifests import make_job
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

ENDLESS = """
import pathlib, time
import torch, torch.distributed as dist
from rover_kf import Checkpointer
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
state = {"model": model}
checkpointer = Checkpointer()
step = checkpointer.restore(state)
while not pathlib.Path("done").exists():
    step += 1
    time.sleep(0.02)
    model(torch.ones(4, 8)).sum().backward()
    model.zero_grad()
    checkpointer.step(step, state, samples=4)
checkpointer.close()
dist.destroy_process_group()
"""
POLICY = {
    "checkpoint.every": "20", "checkpoint.persist-seconds": "1", "checkpoint.arena": "64Mi",
    "scaling.mode": "off", "scaling.window": "1", "scaling.max": "2",
}  # fmt: skip
COMMAND = (sys.executable, "-m", "rover_kf.cli", "--on", "embedded", "--state")
WEB = ("top", "--web", "--port")
ROW = "return [...document.querySelectorAll('tbody td')].map((one) => one.innerText)"


@contextlib.contextmanager
def live_view(folder):
    """The command as a user runs it; its process and its address."""
    environment = {name: value for name, value in os.environ.items() if "ROVER_KF" not in name}
    process = subprocess.Popen(
        [*COMMAND, folder / "state", *WEB, "0", "--seconds", "0.5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        said = process.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+/) shows", said)
        assert found, said + process.stdout.read()
        yield process, found[1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def job(tmp_path):
    (tmp_path / "train.py").write_text(ENDLESS)
    (tmp_path / "checkpoints").mkdir()
    policy = POLICY | {"checkpoint.path": str(tmp_path / "checkpoints")}
    manifest = make_job(policy=policy, elastic=(1, 2))
    manifest["spec"]["nprocPerNode"] = "1"
    path = tmp_path / "job.json"
    path.write_text(json.dumps(manifest))
    with client_in(tmp_path) as rover:
        yield EmbeddedJob(rover, rover.submit(path).key)


def _is_beyond(job, step):
    status = job.status()
    return status is not None and status.step > step


def refused(address, method="GET", path="/", host=None):
    """Status and text of a request that a browser of the user would not make."""
    there = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(there.hostname, there.port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host or there.netloc})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_it_follows_a_job(job, tmp_path):
    """Steps count up in the table, a killed process appears in the job's timeline and story without
    a reload, what was unfolded stays so, Pause holds the page still, an end of the server is said;
    the console stays clean. Other names, methods and paths than its own are refused."""
    job.between_seals()
    with live_view(tmp_path) as (process, address), browser() as window:
        window.open(address)
        row = window.run(ROW)
        print(row)
        assert row[:2] == ["PyTorchJob team/digits", "training"]
        assert row[2] == "2/2"
        step = int(row[3])
        eventually(lambda: int(window.run(ROW)[3]) > step, within=90, what="the step counts up")

        window.click("tbody a")
        assert window.text("h1") == "PyTorchJob team/digits"
        assert "The run has not ended yet." in window.text("header")
        assert window.run("return document.querySelectorAll('circle.bad').length") == 0
        window.click("summary")
        unfolded = window.run("return document.querySelector('details').open")
        before = eventually(job.status, what="its status")
        job.kill("digits-worker-1")
        eventually(
            lambda: window.run("return document.querySelectorAll('svg circle.bad').length") > 0,
            within=120,
            what="the failure is drawn",
        )
        assert "TrainingProcessFailed" in window.text("main")
        assert "rank 1 in digits-worker-1" in window.text("main")
        after = job.goes_on(before)
        eventually(
            lambda: f"\n{after.round}\t" in "\n" + window.text("details[open] tbody"),
            within=90,
            what="the new round is in the table that was unfolded",
        )
        assert unfolded

        window.click("#pause")
        held = window.text("time")
        assert window.text("#state") == "paused"
        ended = eventually(job.status, what="its status").step
        eventually(lambda: _is_beyond(job, ended + 50), within=90, what="it trains on")
        assert window.text("time") == held
        window.click("#pause")
        eventually(lambda: window.text("time") != held, within=90, what="it goes on")
        assert window.console() == []
        asked = window.run("return performance.getEntriesByType('resource').map((one) => one.name)")
        assert asked
        assert all(name.startswith(address) for name in asked)

        assert refused(address, host="rover.example:80")[0] == 421
        assert refused(address, method="POST")[0] == 501
        status, text = refused(address, path="/jobs/team/PyTorchJob/other")
        assert status == 404
        assert "other" in text
        for path in ("/jobs/../../etc/passwd", "/jobs/%2e%2e/%2e%2e/%2e%2e", "//x", "/jobs/"):
            status, text = refused(address, path=path)
            print(path, status, text)
            assert status == 404
        assert refused(address, path="/?a=b")[0] == 200

        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        eventually(lambda: "no answer" in window.text("#state"), within=90, what="the end is said")
        assert "TrainingProcessFailed" in window.text("main")

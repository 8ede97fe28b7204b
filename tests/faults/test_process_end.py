# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The end of training processes under rover-run, beside Python's own."""

from __future__ import annotations

import gzip
import pathlib
import subprocess
import sys

import pytest

from tests.support.pods.launcher_pods import Job

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = pathlib.Path(__file__).parents[1] / "support" / "training" / "ended_training.py"

SPOILT = """
import threading
import torch, rover_kf
from rover_kf.trainer.staging.copy_threads import SharedWork
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = {"model": model, "optimizer": optimizer}
checkpointer = rover_kf.Checkpointer(every=1, overlap=True)
start = checkpointer.restore(state)
print("restored", start, flush=True)
for step in range(start + 1, 4):
    checkpointer.finish()
    if step == 3 and not start:  # nothing is copied before the best weights are loaded
        go = threading.Event()
        checkpointer._stager._overlap._threads.submit(SharedWork([lambda: go.wait(60)]))
    checkpointer.step(step, state)
if not start:
    model.load_state_dict({name: torch.zeros_like(it) for name, it in model.state_dict().items()})
    go.set()
"""


@pytest.mark.parametrize("end", ["return", "exit", "raise"])
def test_a_program_ends_as_python_ends_it(tmp_path, end):
    """What it leaves open is written to the last byte: text, CSV, gzip, zip, of another module, of
    a thread that it did not wait for. Exit functions and finalizers run in Python's order. Python
    itself may lose what garbage has open; here that is written, too."""
    folders = [tmp_path / name for name in ("python", "rover")]
    for folder in folders:
        folder.mkdir()
    plain = subprocess.run(
        [sys.executable, SCRIPT, folders[0], end],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SCRIPT.parents[3])},
        timeout=60,
        check=False,
    )
    with Job(1, restarts=0) as job:
        job.start(str(SCRIPT), str(folders[1]), end)
        code = job.pods[0].wait()
        assert "a line without an end" in job.pods[0].text()
    assert (code == 0) is (plain.returncode == 0) is (end != "raise")
    expected, found = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders
    )
    for files in (expected, found):
        files["packed.gz"] = gzip.decompress(files["packed.gz"])
    for name, content in (("garbage.held", b"held\n"), ("packed.gz", b"packed\n")):
        assert expected.pop(name) in (b"", content)
        assert found.pop(name) == content
    archives = [files.pop("archive.zip") for files in (expected, found)]
    assert len(archives[0]) == len(archives[1]) > 100
    assert sorted(found.pop("order").split(b"\n")) == sorted(expected.pop("order").split(b"\n"))
    assert found == expected
    assert all(found.values())


def test_a_last_step_that_is_lost_at_the_end_is_trained_again():
    """The script ends well, but its last copy is spoilt, which close() says at the end: the exit
    code was 0 and the job was done without that step. Now the process fails, and its successor
    trains that step."""
    with Job(1, restarts=1) as job:
        job.start(job.script(SPOILT))
        pod = job.pods[0]
        assert pod.wait() == 0
        assert "step 3 is not saved" in pod.text()
        restored = [line for line in pod.text().splitlines() if line.startswith("restored")]
        # The slot of the lost step was step 1's or 2's, whichever was not being persisted.
        assert restored in (["restored 0", "restored 1"], ["restored 0", "restored 2"])
        status = job.status()
        assert (status.phase, status.durable_step, status.restarts) == ("finished", 3, 1)

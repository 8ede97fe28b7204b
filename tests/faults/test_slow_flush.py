# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The last step of a pod whose storage needs longer for it than any other answer may take."""

from __future__ import annotations

import signal
import subprocess

import pytest

from rover_kf.api import names
from rover_kf.launcher.sidecar_requests import LONGEST_POLL
from tests.support.faults.hanging_folder import disk, must_be_root
from tests.support.pods.launcher_pods import Job
from tests.support.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


@pytest.mark.parametrize("told_to_end", [True, False])
def test_it_is_waited_for(tmp_path, monkeypatch, told_to_end):
    """A pod that is told to end uses its grace for it, and one whose training is over has it."""
    must_be_root()
    monkeypatch.setenv(names.ENV_GRACE, "240")
    with disk(tmp_path / "disk") as volume:
        policy = {"checkpoint.path": str(volume.folder / "pvc")}
        with Job(1, policy=policy) as job:
            job.start(job.script(), "100000" if told_to_end else "200", "0.02")
            job.stepping(0)
            eventually(lambda: (job.status().durable_step or 0) >= 5, within=120)
            volume.freeze()
            launcher = job.pods[0].launcher
            if told_to_end:
                launcher.send_signal(signal.SIGTERM)
            else:
                eventually(lambda: job.status().step == 200, within=120)
            with pytest.raises(subprocess.TimeoutExpired):
                launcher.wait(LONGEST_POLL + 3)
            volume.thaw()
            assert launcher.wait(120) == (names.EXIT_DRAINED if told_to_end else 0)
            assert job.status().durable_step == job.pods[0].steps()[-1]["step"]
            assert "newest checkpoint" not in job.pods[0].text()

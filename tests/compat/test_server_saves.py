# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob whose parameter servers write their own variables: chief and servers are killed."""

from __future__ import annotations

import http.client
import pathlib
import re
from typing import Any

import pytest
from job_manifests import make_job
from tensorflow_job import TensorFlowJob, TensorFlowPod
from tests_support import eventually

from rover_kf.api import codec, names
from rover_kf.api.status import CoordinatorStatus

pytestmark = pytest.mark.timeout(1200)

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
PATIENCE = 240.0
_STARTS = re.compile(r"^starts after (\d+) from (\w+): (\w+)$", re.MULTILINE)


def _manifest(folder: pathlib.Path, steps: int, *deaths: str, **policy: str) -> dict[str, Any]:
    """A chief, a worker and two servers; the chief saves every five steps."""
    command = ["python", "server_saves.py", str(folder), str(steps), *deaths]
    told = {
        "checkpoint.every": "5",
        "checkpoint.path": "/checkpoints",
        "checkpoint.persist-seconds": "0",
        "checkpoint.shards": "/shards",
        "checkpoint.arena": "64Mi",
        "failures.back-off": "0",
    }
    told |= {f"checkpoint.{key.replace('_', '-')}": value for key, value in policy.items()}
    made = make_job(kind="TFJob", workers=1, command=command, policy=told)
    worker = made["spec"]["tfReplicaSpecs"]["Worker"]
    servers = {"Chief": worker, "PS": {**worker, "replicas": 2}}
    made["spec"]["tfReplicaSpecs"].update(servers)
    return made


def _starts(chief: TensorFlowPod) -> list[tuple[int, str, str]]:
    """Step, source, and whether the state was what it has to be."""
    return [(int(step), source, how) for step, source, how in _STARTS.findall(chief.text())]


def _warnings(chief: TensorFlowPod) -> list[str]:
    connection = http.client.HTTPConnection(chief.address, names.PORT, timeout=10)
    connection.request("GET", names.PATH_STATUS)
    status = codec.loads(CoordinatorStatus, connection.getresponse().read())
    connection.close()
    events = [one for one in status.events if one.reason == names.EVENT_CHECKPOINT_WARNING]
    return [one.message for one in events]


def test_a_chief_killed_at_any_point_of_a_save_goes_on_from_a_whole_step(tensorflow, tmp_path):
    """Before servers write, when they have written, when that is safe, when the step is sealed; and
    where a byte of a server's file has changed it is the step before, with a Warning."""
    deaths = ("made:10", "written:20", "settled:30", "sealed:40", "damaged:55")
    manifest = _manifest(tmp_path / "deaths", 70, *deaths)
    with TensorFlowJob(manifest, tensorflow, SCRIPTS) as job:
        chief = job.pods["chief-0"]
        eventually(lambda: "\ndone\n" in chief.text(), within=4 * PATIENCE, what="the end")
        told, starts = _warnings(chief), _starts(chief)
        left = sorted(path.name for path in (job.folder / "shards").iterdir())
    print(starts, *told, *left, sep="\n")
    assert [step for step, _, _ in starts] == [0, 5, 15, 25, 40, 50]
    assert {how for _, _, how in starts} == {"whole"}
    assert {source for _, source, _ in starts[1:]} == {"memory"}
    (warning,) = (line for line in told if line.startswith("step 55 cannot be restored"))
    assert "trying an older one" in warning
    assert 2 <= len(left) <= 7, "three on storage, two in memory, two that were seen once"
    assert min(left) > "step-000000000040", "what killed saves have left is gone"

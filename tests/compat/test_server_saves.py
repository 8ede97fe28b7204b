# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob whose parameter servers write their own variables: chief and servers are killed."""

from __future__ import annotations

import http.client
import json
import pathlib
import re
from typing import Any

import pytest
import yaml

from rover_kf.api import codec, names
from rover_kf.api.status import CoordinatorStatus
from tests.support.jobs.job_manifests import make_job
from tests.support.jobs.tensorflow_job import TensorFlowJob, TensorFlowPod
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(1200)

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
SAMPLES = pathlib.Path(__file__).parents[2] / "manifests" / "samples"
BATCHES = 9
"""Of the sample, an epoch."""
PATIENCE = 240.0
_SAMPLE_STARTS = re.compile(r"^starts after step (\d+) from (\w+): loss ([\d.]+)$", re.MULTILINE)
_SAMPLE_STEP = re.compile(r"^step (\d+) loss ([\d.]+)$", re.MULTILINE)
_STARTS = re.compile(r"^starts after (\d+) from (\w+): (\w+)$", re.MULTILINE)


def _manifest(folder: pathlib.Path, steps: int, *deaths: str, **policy: str) -> dict[str, Any]:
    """A chief, a worker and two servers; the chief saves every five steps."""
    return _job(["python", "server_saves.py", str(folder), str(steps), *deaths], **policy)


def _job(command: list[str], **policy: str) -> dict[str, Any]:
    """The same with another script."""
    told = {
        "checkpoint.every": "5",
        "checkpoint.path": "/checkpoints",
        "checkpoint.persist-seconds": "0",
        "checkpoint.shards": "/shards",
        "checkpoint.arena": "64Mi",
        "failures.max-backoff": "0",
    }
    told |= {f"checkpoint.{key.replace('_', '-')}": value for key, value in policy.items()}
    made = make_job(kind="TFJob", workers=1, command=command, policy=told)
    worker = made["spec"]["tfReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    container["env"] = [{"name": "TF_USE_LEGACY_KERAS", "value": "1"}]
    servers = {"Chief": worker, "PS": {**worker, "replicas": 2}}
    made["spec"]["tfReplicaSpecs"].update(servers)
    return made


def test_the_sample_goes_on_from_what_its_servers_wrote(tensorflow):
    """Two servers, each part of the model on both: one is killed, then the chief. Both times the
    loss is what it was at that step, and in the end each row counts once an epoch."""
    epochs = 30
    documents = yaml.safe_load_all((SAMPLES / "wide-and-deep.yaml").read_text())
    (manifest,) = (part for part in documents if part["kind"] == "TFJob")
    manifest["metadata"]["annotations"]["rover-kf.io/checkpoint.shards"] = "/checkpoints/tables"
    specs = manifest["spec"]["tfReplicaSpecs"]
    specs["PS"]["replicas"] = 2
    specs["Chief"]["template"]["spec"]["containers"][0]["command"][-1] = str(epochs * BATCHES)
    with TensorFlowJob(manifest, tensorflow, SAMPLES) as job:
        chief = job.pods["chief-0"]
        _reaches(chief, 30)
        for killed in (job.pods["ps-1"], chief):
            before = len(_SAMPLE_STARTS.findall(chief.text()))
            killed.kill()
            eventually(
                lambda: len(_SAMPLE_STARTS.findall(chief.text())) > before,  # noqa: B023
                within=PATIENCE, what="the next start",
            )  # fmt: skip
            step, source, loss = _SAMPLE_STARTS.findall(chief.text())[-1]
            told = dict(_SAMPLE_STEP.findall(chief.text().rsplit("starts after", 1)[0]))
            print(f"goes on with {step} from {source}, loss {loss}")
            assert (source, loss) == ("memory", told.get(step, loss))
            _reaches(chief, int(step) + 20)
        assert chief.trainer is not None
        assert chief.trainer.wait(PATIENCE) == 0
        result = json.loads(chief.text().strip().splitlines()[-1])
        kept = [
            path.stat().st_size for path in (job.folder / "shards").glob("*/state.data-0000[01]*")
        ]
    print(result)
    assert (result["steps"], result["resumed"]) == (epochs * BATCHES, "memory")
    assert (result["least"], result["most"]) == (epochs, epochs)
    assert min(kept) > 1000, "each server has written"


def test_model_fit_goes_on_bit_by_bit(tensorflow):
    """tf-keras, two lines more: a server is killed, then the chief; the weights become those of a
    training that nobody disturbed, of which every batch is the same."""
    found = []
    for disturbed in (False, True):
        manifest = _job(["python", "servers_fit.py", "12", "10"])
        with TensorFlowJob(manifest, tensorflow, SCRIPTS) as job:
            chief = job.pods["chief-0"]
            for killed, epoch in (("ps-1", 3), ("chief-0", 7)) if disturbed else ():
                line = f"epoch {epoch}\n"
                eventually(lambda: line in chief.text(), within=PATIENCE, what=line)  # noqa: B023
                job.pods[killed].kill()
            assert chief.trainer is not None
            assert chief.trainer.wait(PATIENCE) == 0
            found.append(chief.text())
    begins = [int(step) for step in re.findall(r"^begins after (\d+)$", found[1], re.MULTILINE)]
    print(f"began after {begins}")
    assert len(begins) == 3
    assert begins[1] >= 35
    assert begins[2] >= 75
    assert "resumed from memory" in found[1]
    (once,), (again,) = (re.findall(r"^weights (\w+)$", text, re.MULTILINE) for text in found)
    assert once == again


def _reaches(chief: TensorFlowPod, step: int) -> None:
    """Wait until its newest program has come so far."""

    def reached() -> bool:
        found = _SAMPLE_STEP.findall(chief.text().rsplit("starts after", 1)[-1])
        return bool(found) and int(found[-1][0]) >= step

    eventually(reached, within=PATIENCE, what=f"the chief reaches step {step}")


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

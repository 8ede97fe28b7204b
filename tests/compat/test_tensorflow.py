# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TFJobs with real TensorFlow: a worker, a parameter server and the chief are killed."""

from __future__ import annotations

import http.client
import json
import pathlib
import re
import shutil
import signal
from typing import Any

import pytest
import yaml

from rover_kf.api import codec, names
from rover_kf.api.status import CoordinatorStatus
from tests.support.failure_cases import SERVER_LOST
from tests.support.faults.slow_process import slowed
from tests.support.jobs.job_manifests import make_job
from tests.support.jobs.tensorflow_job import TensorFlowJob, TensorFlowPod
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(1200)

HERE = pathlib.Path(__file__).parent
SAMPLES = HERE.parents[1] / "manifests" / "samples"
ROWS, BATCH, BATCHES = 569, 64, 9
"""Of the sample: its table, what is handed out at once, and how often an epoch."""
PATIENCE = 240.0
"""Seconds: loading TensorFlow takes half a minute on a busy machine."""
_STARTS = re.compile(r"^starts after step (\d+) from (\w+): loss ([\d.]+)$", re.MULTILINE)
_STEP = re.compile(r"^step (\d+) loss ([\d.]+)$", re.MULTILINE)
_BEGINS = re.compile(r"^begins after (\d+)$", re.MULTILINE)


def _sample(steps: int) -> dict[str, Any]:
    """The TFJob of the sample."""
    documents = yaml.safe_load_all((SAMPLES / "wide-and-deep.yaml").read_text())
    (manifest,) = (part for part in documents if part["kind"] == "TFJob")
    chief = manifest["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"][0]
    chief["command"][-1] = str(steps)
    return manifest


def test_a_worker_a_server_and_the_chief_are_killed(tensorflow):
    """The sample. A worker's loss costs no step; the chief goes on from memory after a server's
    loss and after its own, with the very loss that it had at that step. In the model that ends
    each row was trained on in each epoch, and of the worker's last batch perhaps twice."""
    epochs = 67
    with TensorFlowJob(_sample(epochs * BATCHES), tensorflow, SAMPLES) as job:
        chief = job.pods["chief-0"]
        _beyond(chief, 20)
        job.pods["worker-1"].kill()
        _beyond(chief, 100)
        assert len(_STARTS.findall(chief.text())) == 1
        starts = [_goes_on(chief, job.pods[SERVER_LOST.name])]
        told = _failures(chief)
        starts.append(_goes_on(chief, chief))
        assert chief.trainer is not None
        assert chief.trainer.wait(PATIENCE) == 0
        result = json.loads(chief.text().strip().splitlines()[-1])
        stored = sorted(path.name for path in (job.folder / "storage").glob("*/*/manifest.json"))
    print(*told, sep="\n")
    print(f"goes on from {starts}, ends with {result}, {len(stored)} manifests on storage")
    assert [line for line in told if f": {SERVER_LOST.kind}: a parameter server" in line]
    assert (result["steps"], result["resumed"]) == (epochs * BATCHES, "memory")
    assert result["least"] == epochs
    assert result["rows"] - epochs * ROWS <= BATCH
    assert result["loss"] < 0.05  # without wide or deep part it stays above


def _failures(chief: TensorFlowPod) -> list[str]:
    """What its coordinator has told of processes that ended."""
    connection = http.client.HTTPConnection(chief.address, names.PORT, timeout=10)
    connection.request("GET", names.PATH_STATUS)
    status = codec.loads(CoordinatorStatus, connection.getresponse().read())
    connection.close()
    return [one.message for one in status.events if one.reason == names.EVENT_PROCESS_FAILED]


def test_all_pods_end_at_once(tensorflow):
    """The job is suspended: its servers stay until the chief has saved, and no step is lost."""
    with TensorFlowJob(_sample(100000), tensorflow, SAMPLES) as job:
        chief = job.pods["chief-0"]
        _beyond(chief, 20)
        launchers = [pod.trainer for pod in job.pods.values() if pod.trainer is not None]
        for launcher in launchers:
            launcher.send_signal(signal.SIGTERM)
        codes = [launcher.wait(PATIENCE) for launcher in launchers]
        text, places = chief.text(), (job.folder / "storage").glob("*/step-*/manifest.json")
        stored = max(int(path.parent.name.split("-")[1]) for path in places)
    print(f"told {_STEP.findall(text)[-1]}, step {stored} is on storage")
    assert codes == [names.EXIT_DRAINED] * 4
    assert "Traceback" not in text
    assert stored >= int(_STEP.findall(text)[-1][0])


@pytest.mark.parametrize("parts", [8, 1])
def test_more_servers_go_on_from_what_fewer_have_saved(tensorflow, tmp_path, parts):
    """The sample ends with one PS, as it does when it is suspended, and goes on with two of them
    from storage: weights and records are what they were, where large variables have as many parts
    as before and where they have twice as many."""
    epochs = 80
    manifest = _sample(epochs * BATCHES)
    specs = manifest["spec"]["tfReplicaSpecs"]
    for spec in specs.values():
        command = spec["template"]["spec"]["containers"][0]["command"]
        script = str(HERE / "scripts" / "partitioned.py")
        command[1:2] = [script, str(parts), str(SAMPLES / command[1])]
    kept = tmp_path / "storage"
    with TensorFlowJob(manifest, tensorflow, SAMPLES) as job:
        chief = job.pods["chief-0"]
        _beyond(chief, 40)
        launchers = [pod.trainer for pod in job.pods.values() if pod.trainer is not None]
        for launcher in launchers:
            launcher.send_signal(signal.SIGTERM)
        assert [launcher.wait(PATIENCE) for launcher in launchers] == [names.EXIT_DRAINED] * 4
        told = _STEP.findall(chief.text())
        shutil.copytree(job.folder / "storage", kept)
    specs["PS"]["replicas"] = 2
    wider = TensorFlowJob(manifest, tensorflow, SAMPLES)
    shutil.copytree(kept, wider.folder / "storage")
    with wider as job:
        chief = job.pods["chief-0"]
        assert chief.trainer is not None
        assert chief.trainer.wait(PATIENCE) == 0
        ((step, source, loss),) = _STARTS.findall(chief.text())
        again = _STEP.findall(chief.text())
        result = json.loads(chief.text().strip().splitlines()[-1])
    print(f"ended after {told[-1]}, went on from {step}: {loss}, then {again[0]}; {result}")
    assert (source, int(step) >= int(told[-1][0])) == ("storage", True)
    assert float(told[-1][1]) >= float(loss) >= float(again[0][1])  # it falls with each step
    assert (result["least"], result["most"]) == (epochs, epochs)


def test_slow_workers_take_fewer(tensorflow):
    """One of two workers runs a tenth of the time: it takes far fewer batches of an epoch, and each
    row is handed out once an epoch."""
    rows, batch, epochs = 2000, 16, 2
    manifest = _sample(1)
    for spec in manifest["spec"]["tfReplicaSpecs"].values():
        words = ["python", "scheduled_rows.py", str(rows), str(batch), str(epochs)]
        spec["template"]["spec"]["containers"][0]["command"] = words
    with TensorFlowJob(manifest, tensorflow, HERE / "scripts") as job:
        chief, workers = job.pods["chief-0"], [job.pods[f"worker-{index}"] for index in (0, 1)]
        eventually(lambda: "step 10\n" in chief.text(), within=PATIENCE, what="ten steps")
        before = [worker.text().count("took ") for worker in workers]
        with slowed(workers[1].training_process(), 0.1):
            assert chief.trainer is not None
            assert chief.trainer.wait(PATIENCE) == 0
        took = [worker.text().count("took ") for worker in workers]
        text = chief.text().rpartition("{")[2].partition("}")[0]
    result = json.loads("{" + text + "}")
    print(f"batches taken: {before} before one was slow, {took} in the end; {result}")
    assert result == {"steps": epochs * 125, "least": 1, "most": 1, "rows": epochs * rows}
    since = [after - first for after, first in zip(took, before, strict=True)]
    assert since[0] > 2 * since[1]


def test_workers_come_and_go(tensorflow):
    """The sample of coming workers: one becomes three and one again, the chief's program is killed
    and the parameter server. In the model that ends no row of any epoch is lacking."""
    epochs = 30
    documents = yaml.safe_load_all((SAMPLES / "coming-workers.yaml").read_text())
    (manifest,) = (part for part in documents if part["kind"] == "TFJob")
    for spec in manifest["spec"]["tfReplicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["command"][-1] = str(epochs)
    manifest["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 3
    with TensorFlowJob(manifest, tensorflow, SAMPLES, later=("worker-1", "worker-2")) as job:
        chief, server = job.pods["chief-0"], job.pods["ps-0"]
        first, *others = (job.pods[f"worker-{index}"] for index in range(3))
        _took(first, 50)
        for worker in others:
            worker.start()
        for worker in others:
            _took(worker, 20)
        before = first.text().count("took ")
        for worker in others:
            assert worker.trainer is not None
            worker.trainer.send_signal(signal.SIGTERM)
        codes = [worker.trainer.wait(PATIENCE) for worker in others if worker.trainer]
        _took(first, before + 20)
        assert codes == [names.EXIT_DRAINED] * 2
        assert len(_STARTS.findall(chief.text())) == 1, "nobody waited for those that went"
        starts = []
        for killed in (chief, server):
            number = len(_STARTS.findall(chief.text()))
            killed.kill()
            eventually(lambda: len(_STARTS.findall(chief.text())) > number, within=PATIENCE)  # noqa: B023
            starts.append(_STARTS.findall(chief.text())[-1])
            _beyond(chief, int(starts[-1][0]) + 20)
        assert chief.trainer is not None
        assert chief.trainer.wait(PATIENCE) == 0
        text = chief.text().rpartition("{")[2].partition("}")[0]
    result = json.loads("{" + text + "}")
    print(f"went on from {starts}; ended with {result}")
    assert {source for _, source, _ in starts} == {"memory"}
    assert result["least"] == epochs
    assert result["loss"] < 0.1


def _took(worker: TensorFlowPod, batches: int) -> None:
    """Wait until it has taken so many in all."""
    eventually(
        lambda: worker.text().count("took ") >= batches, within=PATIENCE, what=f"{batches} batches"
    )


def _goes_on(chief: TensorFlowPod, killed: TensorFlowPod) -> tuple[str, str, str]:
    """Kill a pod's process, wait until the chief has started again and trains; how it started."""
    before = len(_STARTS.findall(chief.text()))
    killed.kill()
    eventually(lambda: len(_STARTS.findall(chief.text())) > before, within=PATIENCE)
    step, source, loss = _STARTS.findall(chief.text())[-1]
    assert source == "memory"
    told = dict(_STEP.findall(chief.text().rsplit("starts after", 1)[0]))
    assert loss == told[step]
    _beyond(chief, int(step) + 20)
    return step, source, loss


def _beyond(chief: TensorFlowPod, step: int) -> None:
    """Wait until the newest start has come so far."""

    def reached() -> bool:
        found = _STEP.findall(chief.text().rsplit("starts after", 1)[-1])
        return bool(found) and int(found[-1][0]) >= step

    eventually(reached, within=PATIENCE, what=f"the chief reaches step {step}")


def _fit(workers: int) -> dict[str, Any]:
    """A TFJob of workers that call Model.fit."""
    command = ["python", "keras_fit.py", "3", "40"]
    policy = {"checkpoint.every": "5", "checkpoint.path": "/checkpoints"}
    job = make_job(kind="TFJob", workers=workers, command=command, policy=policy)
    (container,) = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "TF_USE_LEGACY_KERAS", "value": "1"}]
    return job


def _fitted(python: pathlib.Path, manifest: dict[str, Any], *, disturb: bool) -> list[str]:
    """What each worker printed; disturbed: the last one is killed in the second epoch."""
    with TensorFlowJob(manifest, python, HERE / "scripts") as job:
        workers = list(job.pods.values())
        if disturb:
            eventually(lambda: "batch 47 " in workers[-1].text(), within=PATIENCE)
            workers[-1].kill()
        for worker in workers:
            assert worker.trainer is not None
            assert worker.trainer.wait(PATIENCE) == 0
        return [worker.text() for worker in workers]


def test_mirrored_workers_go_on_bit_by_bit(tensorflow):
    """MultiWorkerMirroredStrategy, tf-keras' Model.fit: one of two workers is killed in the middle
    of an epoch; both go on at one step, and the weights become those of an undisturbed training."""
    undisturbed = _fitted(tensorflow, _fit(2), disturb=False)
    disturbed = _fitted(tensorflow, _fit(2), disturb=True)
    digests = {re.findall(r"^weights (\w+)$", text, re.MULTILINE)[0] for text in undisturbed}
    assert len(digests) == 1
    assert {re.findall(r"^weights (\w+)$", text, re.MULTILINE)[0] for text in disturbed} == digests
    begins = [_BEGINS.findall(text) for text in disturbed]
    print(f"workers began after {begins}, resumed from memory")
    assert begins[0] == begins[1]
    assert int(begins[0][-1]) in range(45, 121, 5)
    assert all("resumed from memory" in text for text in disturbed)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob with parameter servers of which a node is lost, with all that runs there."""

from __future__ import annotations

import pytest
from testcluster import jobs, objects, tfjobs, training_operator
from testcluster.coming_worker import ComingWorker
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from testcluster.tfjobs import Chief

from rover_kf.api import names
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("controller")]

PATIENCE = 300.0
EPOCHS, BATCHES = 178, 9
STEPS = EPOCHS * BATCHES
ROWS, COMING_EPOCHS, PAUSE = 569, 50, "0.2"
"""Of the table, to train by workers that come and go, and seconds after each of their batches: none
is left before a lost one's successor takes some."""


@pytest.fixture
def start(cluster, namespace, with_trainer, shared_claim):
    """Starts the sample with one worker; pods of one replica type on a node, the others not."""
    shared_claim(tfjobs.CLAIM)

    def begin(kind: str, node: str) -> RunningJob:
        made = tfjobs.telling(tfjobs.wide_and_deep(namespace, STEPS))
        specs = made["spec"]["tfReplicaSpecs"]
        specs["Worker"]["replicas"] = 1
        for name, spec in specs.items():
            wish = _rather(node, "In" if name == kind else "NotIn")
            spec["template"]["spec"]["affinity"] = {"nodeAffinity": wish}
        apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, tfjobs.NAME, "TFJob")

    return begin


def _rather(node: str, operator: str) -> dict:
    there = {"key": "kubernetes.io/hostname", "operator": operator, "values": [node]}
    wish = {"weight": 100, "preference": {"matchExpressions": [there]}}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}


def _id(pods: dict, pod: str) -> str:
    return str(pods.get(pod, {}).get("metadata", {}).get("uid", ""))


@pytest.fixture
def spare(cluster, controller) -> str:
    """A node on which neither the operator runs, who makes new pods, nor the controller."""
    needed = {
        pod["spec"]["nodeName"]
        for namespace in (training_operator.NAMESPACE, controller)
        for pod in objects.get(cluster, namespace, "pods")["items"]
    }
    return max(cluster.ready_nodes() - needed)


@pytest.mark.at_length
@pytest.mark.parametrize("kind", ["PS", "Worker", "Chief"])
def test_a_lost_node_costs_the_steps_since_the_last_save(start, spare, node_faults, kind):
    """The node of a parameter server, of a worker or of the chief loses power: its pod is removed,
    another one is made elsewhere, and the chief goes on with the model that was saved last. No
    other pod is made anew, and the model that ends has had each row once an epoch."""
    job = start(kind, spare)
    chief, lost = Chief(job, PATIENCE), f"{job.name}-{kind.lower()}-0"
    chief.reach(30)
    pods = job.pods()
    assert pods[lost]["spec"]["nodeName"] == spare
    before = {name: pod["metadata"]["uid"] for name, pod in pods.items()}
    told, losses = len(chief.starts()), dict(chief.losses())
    with node_faults.node_stopped(spare):

        def goes_on() -> list[tfjobs.Start]:
            if _id(job.pods(), chief.pod) == before[chief.pod]:
                losses.update(chief.losses())
                return chief.starts()[told:]
            return chief.starts()

        (begun, *_) = eventually(goes_on, within=PATIENCE, every=0.5, what="the chief goes on")
        assert begun.source == ("storage" if kind == "Chief" else "memory")
        assert begun.step > 0
        assert begun.loss == losses.get(begun.step, begun.loss)
        chief.reach(begun.step + 20)
        after = job.pods()
        new = {name for name in before if after[name]["metadata"]["uid"] != before[name]}
        assert new == {lost}
        assert after[lost]["spec"]["nodeName"] != spare
        assert eventually(job.verdict, within=PATIENCE, every=0.5, what="the end") == "Succeeded"
    result = chief.result()
    assert (result["steps"], result["least"], result["most"]) == (STEPS, EPOCHS, EPOCHS)
    (removed,) = job.told(names.EVENT_POD_LOST)
    assert lost in removed
    print(f"\nhad told {max(losses)}, went on with {begun}; {removed}; ended with {result}")


@pytest.fixture
def coming(cluster, namespace, with_trainer, shared_claim, spare) -> RunningJob:
    """Two workers that come and go, a node each; nothing else of the job on one of the two."""
    shared_claim(f"{tfjobs.COMING}-checkpoints")
    made = tfjobs.coming(namespace, COMING_EPOCHS)
    specs = made["spec"]["tfReplicaSpecs"]
    for name, spec in specs.items():
        wish = (
            objects.apart("training.kubeflow.org/replica-type", "worker")
            if name == "Worker"
            else {"nodeAffinity": _rather(spare, "NotIn")}
        )
        spec["template"]["spec"]["affinity"] = wish
    specs["Worker"]["replicas"] = 2
    command = specs["Worker"]["template"]["spec"]["containers"][0]["command"]
    command[command.index("--pause") + 1] = PAUSE
    apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    return RunningJob(cluster, namespace, tfjobs.COMING, "TFJob")


@pytest.mark.at_length
def test_a_worker_that_came_is_lost_with_its_node(coming, spare, node_faults, faults):
    """Another worker is made elsewhere and takes records; the chief and the other worker go on with
    the model that was saved last, no record is lost, and what counts twice is at most what the lost
    one was lent."""
    job = coming
    workers = [ComingWorker(job, faults, index) for index in (0, 1)]
    for worker in workers:
        worker.takes(10)
    before = job.pods()
    (dies,) = (one for one in workers if before[one.pod]["spec"]["nodeName"] == spare)
    (stays,) = (one for one in workers if one is not dies)
    with node_faults.node_stopped(spare):
        lent = dies.lent()
        stays.takes(20)
        uid = before[dies.pod]["metadata"]["uid"]
        eventually(lambda: dies.uid() not in ("", uid), within=PATIENCE, every=0.5, what="a pod")
        dies.takes(5)
        after = job.pods()
        new = {name for name, pod in after.items() if pod["metadata"]["uid"] != _id(before, name)}
        assert new == {dies.pod}
        assert after[dies.pod]["spec"]["nodeName"] != spare
        assert eventually(job.verdict, within=PATIENCE, every=0.5, what="the end") == "Succeeded"
    chief = Chief(job, PATIENCE)
    result, (removed,) = chief.result(), job.told(names.EVENT_POD_LOST)
    assert [start.source for start in chief.starts()] == ["none", "memory"]
    assert dies.pod in removed
    again = result["rows"] - COMING_EPOCHS * ROWS
    print(f"\nlent when lost {lent}, counted twice {again}; {removed}; ended with {result}")
    assert result["least"] == COMING_EPOCHS, "a row was lost"
    assert 0 <= again <= lent

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A TFJob with parameter servers on a real cluster, each of its parts lost; and what is refused."""

from __future__ import annotations

import json
import re
import signal

import pytest
from testcluster import jobs, objects, tfjobs
from testcluster.errors import CommandFailed
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from testcluster.tfjobs import Chief, Start

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey
from rover_kf.client import RoverClient, settings
from rover_kf.cluster.kubernetes import config
from rover_kf.injection import quantities
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(1500), pytest.mark.usefixtures("controller")]

PATIENCE = 300.0
"""Seconds: four processes load TensorFlow at once, on two cores."""
HOT_STEPS = 600
ROWS, BATCH, BATCHES = 569, 64, 9
"""Of the sample: its table, what is handed out at once, and how often an epoch."""
EPOCHS, EVERY = 178, 10
"""To train, and steps between two saves."""
STEPS = EPOCHS * BATCHES
COMING_EPOCHS, COMING_BATCH = 50, 16
_ROW = (
    "import sqlite3, sys; print(sqlite3.connect('/var/lib/rover-kf/history.db').execute("
    "'select record from runs where namespace = ?', sys.argv[1:]).fetchone()[0])"
)


@pytest.fixture
def start(cluster, namespace, with_trainer, shared_claim):
    """Starts the sample."""
    shared_claim(tfjobs.CLAIM)

    def begin(steps: int, workers: int = 2, *, telling: bool = False, **policy: str) -> RunningJob:
        told = {f"checkpoint.{key.replace('_', '-')}": value for key, value in policy.items()}
        made = tfjobs.wide_and_deep(namespace, steps, {"memory.max": "2Gi", **told})
        made = tfjobs.telling(made) if telling else made
        made["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = workers
        apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, namespace, tfjobs.NAME, "TFJob")

    return begin


def _uids(job: RunningJob) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in job.pods().items()}


def _goes_on(chief: Chief, sources: set[str]) -> Start:
    """The chief's next program begins with the loss that the former had at that step."""
    begun = chief.start_after(len(chief.starts()))
    assert begun.source in sources
    # A program that is killed between a save and its next line has not told that step's loss.
    assert begun.loss == chief.losses().get(begun.step, begun.loss)
    chief.reach(begun.step + 20)
    return begun


@pytest.mark.at_length
def test_every_part_of_a_tfjob_is_lost(cluster, controller, faults, start):
    """A worker's pod, the PS, the PS for want of memory, the chief: the job completes, its loss
    goes on from the checkpoint, no pod but the worker's is made anew, and the story tells each."""
    job = start(STEPS)
    chief, worker, server = Chief(job, PATIENCE), f"{job.name}-worker-1", f"{job.name}-ps-0"
    chief.reach(20)
    before = _uids(job)

    first = faults.processes(job.namespace, worker, container="tensorflow")[0]
    faults.reach.send(signal.SIGKILL, first)  # the whole container: the operator makes another pod
    eventually(
        lambda: _uids(job).get(worker, before[worker]) != before[worker],
        within=PATIENCE, every=0.3, what="another worker's pod",
    )  # fmt: skip
    chief.reach(chief.step() + 20)
    assert len(chief.starts()) == 1, "a worker's loss costs no step"

    faults.kill(job.namespace, server, container="tensorflow")
    starts = [_goes_on(chief, {"memory"})]
    faults.kill(job.namespace, server, container="tensorflow", number=signal.SIGUSR1)
    starts.append(_goes_on(chief, {"memory"}))
    faults.kill(job.namespace, chief.pod, container="tensorflow")
    starts.append(_goes_on(chief, {"memory"}))

    assert eventually(job.verdict, within=PATIENCE, every=0.5, what="the end") == "Succeeded"
    after = _uids(job)
    assert {name for name in before if after.get(name, before[name]) != before[name]} == {worker}
    result = chief.result()
    assert (result["steps"], result["resumed"]) == (STEPS, "memory")
    assert result["loss"] < 0.05  # without wide or deep part it stays above
    assert result["least"] == EPOCHS, "a row was lost"
    assert result["rows"] - EPOCHS * ROWS <= BATCH, "more than the lost worker's batch again"

    (raised,) = job.told(names.EVENT_MEMORY_RAISED)
    assert "PS replicas 768Mi -> " in raised
    assert "in place" in raised
    died = job.told(names.EVENT_PROCESS_FAILED)
    assert any(server in line and "out_of_memory" in line for line in died)
    assert any(chief.pod in line for line in died)
    eventually(lambda: job.told("RunRecorded"), within=60, what="the history's row")
    read = ("exec", "deploy/rover-kf-controller", "--", "python3", "-c", _ROW, job.namespace)
    record = json.loads(cluster.kubectl("-n", controller, *read))
    assert record["signature"]["kind"] == "TFJob"
    assert (record["outcome"], record["total_steps"]) == ("succeeded", STEPS)
    assert record["steps"] > starts[-1].step  # the last ones end with the chief's sidecar
    assert record["memory_raised"] > 768 << 20
    print(f"\nwent on {[(one.step, one.source) for one in starts]}, ended with {result}; {raised}")


@pytest.mark.at_length
def test_a_chief_that_is_lost_with_its_memory_goes_on_from_the_servers(cluster, faults, start):
    """Its program and its sidecar are killed at once, and the operator makes another pod; next to
    nothing is on storage. The loss is what it was at that step."""
    job = start(STEPS, workers=1, peer_copy="on", persist_seconds="1h")
    chief = Chief(job, PATIENCE)
    chief.reach(20)
    kept = ("exec", f"{job.name}-ps-0", "-c", "tensorflow", "--", "ls", "/rover/arena")

    def copied() -> bool:
        return f"{names.REPLICA_PLACE}0" in cluster.kubectl("-n", job.namespace, *kept)

    eventually(copied, within=PATIENCE, every=0.3, what="the server has a copy")
    reached = chief.reach(chief.step() + 30)
    before, losses = _uids(job), chief.losses()
    containers = ("tensorflow", names.SIDECAR_CONTAINER)
    # The first process of a container takes all others along.
    firsts = [faults.processes(job.namespace, chief.pod, container=one)[0] for one in containers]
    for process in firsts:
        faults.reach.send(signal.SIGKILL, process)

    def another() -> bool:
        if _uids(job).get(chief.pod) == before[chief.pod]:
            losses.update(chief.losses())
        return _uids(job).get(chief.pod, before[chief.pod]) != before[chief.pod]

    eventually(another, within=PATIENCE, every=0.3, what="another chief's pod")
    begun = chief.start_after(0)  # of a pod of its own, whose log begins anew
    assert begun.source == "peer"
    assert begun.step >= reached - 2 * EVERY
    # A program that is killed between a save and its next line has not told that step's loss.
    assert begun.loss == losses.get(begun.step, begun.loss)
    chief.reach(begun.step + 20)
    after = _uids(job)
    assert {name for name in before if after[name] != before[name]} == {chief.pod}
    told = f"resumes at step {begun.step} from peer"
    eventually(
        lambda: any(told in line for line in job.told(names.EVENT_RESTORED)),
        within=60, what="the Event",
    )  # fmt: skip
    print(f"\nhad told {max(losses)}, went on with {begun}")


def _resized(cluster, job: RunningJob, chief: Chief, workers: int) -> int:
    """The suspend cycle: all pods gone, another size, resumed; the last step done before it."""
    done = [chief.done()]

    def patch(**spec: object) -> None:
        words = ("patch", "tfjob", job.name, "--type=merge", "-p", json.dumps({"spec": spec}))
        cluster.kubectl("-n", job.namespace, *words)

    def gone() -> bool:
        done.append(chief.done())  # as long as there is a log
        return not job.pods()

    patch(runPolicy={"suspend": True})
    eventually(gone, within=PATIENCE, every=0.1, what="the end of all pods")
    patch(tfReplicaSpecs={"Worker": {"replicas": workers}}, runPolicy={"suspend": False})
    return max(done)


@pytest.fixture
def rover(cluster, tmp_path):
    """A client as a notebook has it."""
    place = config.from_environment(kubeconfig=str(cluster.kubeconfig))
    with RoverClient(place, config=settings.read({}, state=tmp_path)) as client:
        yield client


@pytest.mark.at_length
def test_workers_change_through_a_suspension(cluster, start, rover):
    """One worker becomes three and one again: each time the chief goes on from storage, steps since
    the last save at most are done again, and all workers that TF_CONFIG names take part. The model
    that ends was trained on each row once an epoch. A client follows the job to its end, as it
    would a PyTorchJob."""
    job = start(STEPS, workers=1, telling=True)
    chief, told = Chief(job, PATIENCE), []
    for workers in (3, 1):
        reached = chief.reach((told[-1][1] if told else 0) + 20)
        loss = float(chief.losses()[reached])
        done = _resized(cluster, job, chief, workers)
        begun = chief.start_after(0)  # of a pod of its own, whose log begins anew
        told.append((done, begun.step))
        assert begun.source == "storage"
        assert begun.step > done - EVERY
        assert float(begun.loss) < 1.1 * loss
        named = [name for name in job.pods() if "-worker-" in name]
        assert len(named) == workers
    course = rover.follow(JobKey(job.namespace, job.name, "TFJob"), timeout=PATIENCE)
    assert course[0].replicas == 3  # a chief, a worker, a PS
    assert (course.last.phase, course.last.total_steps) == ("Succeeded", STEPS)
    assert max(look.step for look in course) > told[-1][1]
    result = chief.result()
    assert (result["steps"], result["resumed"]) == (STEPS, "storage")
    assert (result["least"], result["most"]) == (EPOCHS, EPOCHS)
    print(f"\ndone before and begun after: {told}, ended with {result}")


def _took(job: RunningJob, worker: int, batches: int) -> None:
    """Wait until a worker has taken so many in all."""
    pod = f"{job.name}-worker-{worker}"
    eventually(
        lambda: job.log(pod).count("took ") >= batches,
        within=PATIENCE, every=0.5, what=f"{batches} batches of {pod}",
    )  # fmt: skip


@pytest.mark.at_length
def test_workers_come_and_go_live(cluster, namespace, with_trainer, shared_claim, rover):
    """With enableDynamicWorker one worker becomes three and one again: no other pod and no program
    begins anew, Events tell who takes records, and each row is trained on once an epoch."""
    shared_claim(f"{tfjobs.COMING}-checkpoints")
    made = tfjobs.coming(namespace, COMING_EPOCHS)
    apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    job = RunningJob(cluster, namespace, tfjobs.COMING, "TFJob")
    key, chief = JobKey(namespace, tfjobs.COMING, "TFJob"), Chief(job, PATIENCE)
    _took(job, 0, 20)
    before = _uids(job)
    with pytest.raises(errors.InputError, match="allowed: 1 to 3"):
        rover.scale(key, 4)
    rover.scale(key, 3)
    for worker in (1, 2):
        _took(job, worker, 10)
    known = job.log(f"{job.name}-worker-0").count("took ")
    rover.scale(key, 1)
    eventually(lambda: len(job.pods()) == 3, within=PATIENCE, every=0.5, what="two pods' end")
    _took(job, 0, known + 20)
    went = eventually(
        lambda: len(found := job.told(names.EVENT_WORKER_LEFT)) == 2 and found,
        within=120, every=1, what="Events of those that went",
    )  # fmt: skip
    assert _uids(job) == before
    assert eventually(job.verdict, within=2 * PATIENCE, every=0.5, what="the end") == "Succeeded"
    assert len(chief.starts()) == 1
    came, result = job.told(names.EVENT_WORKER_JOINED), chief.result()
    assert sorted(re.findall(r"worker (\d) takes", " ".join(came))) == ["0", "1", "2"]
    assert result["least"] == COMING_EPOCHS, "a row was lost"
    assert result["rows"] - COMING_EPOCHS * ROWS <= 2 * COMING_BATCH
    print(f"\n{came} {went}; ended with {result}")


@pytest.mark.at_length
@pytest.mark.parametrize("kind", ["PS", "Worker"])
def test_pods_that_lack_cores_are_given_more_in_place(
    cluster, namespace, with_trainer, shared_claim, kind
):
    """A PS or workers whose limit holds them back are found, told, and resized while they run: no
    pod and no program begins anew, and the same steps take less time."""
    shared_claim(tfjobs.CLAIM)
    made = tfjobs.hot(namespace, HOT_STEPS, {"scaling.mode": "auto", "cpu.max": "1"}, kind)
    apply(cluster, [with_trainer(made, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    job = RunningJob(cluster, namespace, tfjobs.NAME, "TFJob")
    chief, slow_pod = Chief(job, PATIENCE), f"{tfjobs.NAME}-{kind.lower()}-0"
    chief.reach(10)
    before = _uids(job)
    lines = eventually(
        lambda: job.told(names.EVENT_CPU_RAISED), within=PATIENCE, every=0.5, what="a raise"
    )
    assert f"CPU limit of {kind} replicas {tfjobs.HOT_CPU} -> " in lines[0]
    told = rf"in place: {tfjobs.NAME}-{kind.lower()}-\d.* had used up its {tfjobs.HOT_CPU} in "
    assert re.search(told, lines[0])
    eventually(
        lambda: _cores(job, slow_pod) > quantities.parse_cores(tfjobs.HOT_CPU),
        within=60, every=0.3, what="the kubelet to have resized it",
    )  # fmt: skip
    chief.reach(HOT_STEPS - 20)
    windows = job.status()["windows"]
    slow, fast = (_rate(some) for some in (windows[:2], windows[-2:]))
    assert fast > 1.2 * slow
    assert eventually(job.verdict, within=PATIENCE, every=0.5, what="the end") == "Succeeded"
    assert _uids(job).items() <= before.items()
    assert len(chief.starts()) == 1
    specs = objects.get(cluster, namespace, "tfjob", tfjobs.NAME)["spec"]["tfReplicaSpecs"]
    (container,) = specs[kind]["template"]["spec"]["containers"]
    assert quantities.parse_cores(container["resources"]["limits"]["cpu"]) > 0.1
    raised, kept = job.told(names.EVENT_CPU_RAISED), job.told(names.EVENT_CPU_NOT_RAISED)
    print(f"\n{slow:.2f} -> {fast:.2f} steps/s; {raised} {kept}")


def _rate(windows: list[dict]) -> float:
    """Steps a second over windows of a status."""
    spent = sum(one["ended_at"] - one["started_at"] for one in windows)
    return sum(one["steps"] for one in windows) / spent


def _cores(job: RunningJob, pod: str) -> float:
    """That the kubelet says the container may use now."""
    statuses = job.pods()[pod]["status"]["containerStatuses"]
    found = next(one for one in statuses if one["name"] == "tensorflow")
    assert found["restartCount"] == 0
    return quantities.parse_cores(found["resources"]["limits"]["cpu"])


def _refusal(cluster, document: dict) -> str:
    with pytest.raises(CommandFailed) as refused:
        apply(cluster, [document])
    return str(refused.value)


def test_what_a_tfjob_cannot_do_is_refused_with_reasons(cluster, namespace):
    """Dynamic workers without a bound, PS without a chief, and PS or workers changed while the job
    runs; of workers that come and go the flag, their bound, and more than that."""
    made = tfjobs.wide_and_deep(namespace, 10)
    dynamic = {**made, "spec": {**made["spec"], "enableDynamicWorker": True}}
    assert "PS are started with the addresses of all workers" in _refusal(cluster, dynamic)
    specs = made["spec"]["tfReplicaSpecs"]
    headless = {kind: spec for kind, spec in specs.items() if kind != "Chief"}
    without = {**made, "spec": {**made["spec"], "tfReplicaSpecs": headless}}
    assert "a Chief beside PS" in _refusal(cluster, without)
    specs["PS"]["replicas"] = 2
    apply(cluster, [made])  # its image is nowhere: it never starts
    for kind, count in (("PS", 1), ("Worker", 3)):
        patch = {"spec": {"tfReplicaSpecs": {kind: {"replicas": count}}}}
        words = ("patch", "tfjob", tfjobs.NAME, "--type=merge", "-p", json.dumps(patch))
        with pytest.raises(CommandFailed) as refused:
            cluster.kubectl("-n", namespace, *words)
        assert f"tfReplicaSpecs.{kind}.replicas" in str(refused.value)
        assert "spec.runPolicy.suspend" in str(refused.value)
    apply(cluster, [tfjobs.coming(namespace, 1)])
    workers = {"tfReplicaSpecs": {"Worker": {"replicas": 4}}}
    bound = {"metadata": {"annotations": {"rover-kf.io/scaling.max": "4"}}}
    unbound = {"annotations": {"rover-kf.io/scaling.max": None}}
    flag = {"metadata": unbound, "spec": {"enableDynamicWorker": False}}
    for patch, says in (
        ({"spec": workers}, "allowed: 1 to 3"),
        (bound, "its PS were started with the addresses"),
        (flag, "allowed: true while the job runs"),
    ):
        words = ("patch", "tfjob", tfjobs.COMING, "--type=merge", "-p", json.dumps(patch))
        with pytest.raises(CommandFailed) as refused:
            cluster.kubectl("-n", namespace, *words)
        assert says in str(refused.value)
    found = objects.get(cluster, namespace, "tfjob", tfjobs.NAME)
    replicas = {kind: spec["replicas"] for kind, spec in found["spec"]["tfReplicaSpecs"].items()}
    assert replicas == {"Chief": 1, "Worker": 2, "PS": 2}

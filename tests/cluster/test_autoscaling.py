# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that find their own size on a real cluster, and such whose size is not ours to find."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from testcluster import deployment, jobs, objects
from testcluster.errors import CommandFailed
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from rover_kf.api.jobs import JobKey
from rover_kf.cli.job_verbs import format_explanation
from rover_kf.client import explain as client_explain
from rover_kf.client.explain import Explanation
from rover_kf.cluster.kubernetes import config
from rover_kf.history.store import SqlHistory
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(900), pytest.mark.usefixtures("controller"), pytest.mark.at_length
]  # fmt: skip

MORE_THAN_HALF = "1100m"
"""Of a node's two cores: no node takes two of them."""
ALONE = "1.5"
"""Seconds of a step of one rank; what a shared machine adds to a third of it has to be little."""
POLICY = {
    "scaling.mode": "auto",
    "scaling.window": "4s",
    "scaling.cooldown": "2s",
    "checkpoint.every": "5",
    "checkpoint.arena": "16Mi",
}


def paced(name: str, namespace: str, law: str, *, cpu: str = "200m", **policy: str) -> dict:
    """A job of one replica that may have three."""
    command = ["torchrun", "/tools/paced.py", law, ALONE]
    job = objects.pytorchjob(name, namespace, command, workers=1, elastic=(1, 3), cpu=cpu)
    job["spec"]["nprocPerNode"] = "1"
    keyed = {key.replace("__", "."): value for key, value in policy.items()}
    job["metadata"] |= {
        "labels": {"rover-kf.io/inject": "true"},
        "annotations": {f"rover-kf.io/{key}": text for key, text in {**POLICY, **keyed}.items()},
    }
    return job


@pytest.fixture
def submit(cluster, with_trainer):
    def run(job: dict) -> RunningJob:
        apply(cluster, [with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
        return RunningJob(cluster, job["metadata"]["namespace"], job["metadata"]["name"])

    return run


@pytest.fixture
def explain(cluster, tmp_path):
    """What ``rover-kf explain`` says to a user who has the job alone."""
    place = config.from_environment(kubeconfig=str(cluster.kubeconfig))
    with SqlHistory(f"sqlite:///{tmp_path}/none.db") as none:
        yield lambda job: client_explain.explain(place, none, JobKey(job.namespace, job.name))


def _workers(job: RunningJob) -> int:
    return job.read()["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]


def _tells(job: RunningJob, reason: str, words: str, *, within: float = 60) -> str:
    def said() -> str:
        return next((line for line in job.told(reason) if words in line), "")

    return eventually(said, within=within, every=0.5, what=f"{reason}: {words}")


class Sizes:
    """The numbers of replicas that a job had, one after another, as far as it is looked at."""

    def __init__(self, job: RunningJob) -> None:
        self.job, self.seen = job, [_workers(job)]

    def until(self, size: int, *, meanwhile: Callable[[], object] = int, within: float) -> None:
        """Look until the job has that size and trains with it."""

        def there() -> bool:
            now = _workers(self.job)
            if now != self.seen[-1]:
                self.seen.append(now)
            meanwhile()
            status = self.job.status()
            return now == size == status.get("nodes") and status.get("phase") == "training"

        eventually(there, within=within, every=0.2, what=f"{size} replicas after {self.seen}")


class Killer:
    """Ends the controller without a warning at each decision that a job is told of."""

    def __init__(self, cluster, job: RunningJob) -> None:
        self.cluster, self.job, self.kills = cluster, job, 0

    def __call__(self) -> None:
        if len(self.job.told("ScaleDecision")) > self.kills:
            self.kills += 1
            chosen = ("pod", "-l", "app.kubernetes.io/component=controller")
            at_once = ("--grace-period=0", "--force", "--wait=false")
            self.cluster.kubectl("-n", deployment.NAMESPACE, "delete", *chosen, *at_once)


def _print(*told: str) -> None:
    """What a run of these tests with -s shows."""
    print("", *told, sep="\n")


def _changes(found: Explanation) -> list[tuple[int, int]]:
    return [
        (one.decision.current, one.decision.target)
        for one in found.decisions
        if one.decision.applied
    ]


def test_a_job_grows_by_itself_and_gives_way(cluster, namespace, submit, explain):
    """One replica becomes two and three, each step verified; a second job that finds no room gets
    one of the three, and when it has gone the first has three again. The controller is killed at
    each of these decisions: none is made twice."""
    first = submit(paced("first", namespace, "grows", cpu=MORE_THAN_HALF))
    sizes, killer = Sizes(first), Killer(cluster, first)
    began = time.monotonic()
    sizes.until(3, meanwhile=killer, within=360)
    grown = time.monotonic() - began
    eventually(lambda: len(first.told("ScaleVerified")) >= 2, within=60, what="both verified")
    assert sizes.seen == [1, 2, 3]
    told = [one for one in explain(first).decisions if one.decision.action == "scale"]
    assert [(one.decision.current, one.decision.target) for one in told] == [(1, 2), (2, 3)]
    assert all(one.gain > 1.2 for one in told), told
    assert all(one.decision.predicted_gain > 1 for one in told)

    second = submit(paced("second", namespace, "grows", cpu=MORE_THAN_HALF, scaling__max="1"))
    began = time.monotonic()
    sizes.until(2, meanwhile=killer, within=180)
    _tells(first, "ScaleDecision", "gives 1 of 3 replicas: PyTorchJob")
    eventually(lambda: second.status().get("step"), within=120, what="the second job trains")
    gave = time.monotonic() - began
    eventually(lambda: explain(first).pending_change == "", within=60, what="settled")
    assert sizes.seen == [1, 2, 3, 2]
    assert _workers(first) == 2
    assert _workers(second) == 1

    cluster.kubectl("-n", namespace, "delete", "pytorchjob", "second", "--wait=false")
    began = time.monotonic()
    sizes.until(3, meanwhile=killer, within=240)
    assert sizes.seen == [1, 2, 3, 2, 3]
    assert killer.kills >= 4
    assert first.status()["restarts"] == 0
    _print(
        f"three replicas after {grown:.0f} s, the second job trains {gave:.0f} s after it came, "
        f"three again {time.monotonic() - began:.0f} s after it went; the controller was killed "
        f"{killer.kills} times; {_changes(explain(first))}",
        *format_explanation(explain(first), 20),
    )


def _quota(namespace: str, pods: int) -> dict:
    metadata = {"name": "one-pod", "namespace": namespace}
    spec = {"hard": {"pods": str(pods)}}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}


def _hpa(namespace: str, job: str) -> dict:
    metric = {"type": "Utilization", "averageUtilization": 50}
    target = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": job}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "theirs", "namespace": namespace},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": metric}}],
        },
    }


def test_jobs_that_had_better_stay(cluster, namespace, submit, explain):
    """One that does not profit is taken back and left alone, and one that an HPA scales is not
    changed at all; Events and explain say why."""
    apply(cluster, [_hpa(namespace, "scaled")])
    slow = submit(paced("slow", namespace, "slows"))
    scaled = submit(paced("scaled", namespace, "grows"))
    sizes = Sizes(slow)

    sizes.until(2, within=180)
    sizes.until(1, within=120)
    assert sizes.seen == [1, 2, 1]
    told = _tells(slow, "ScaleRolledBack", "going back to 1 replicas")
    (tried, back) = [one for one in explain(slow).decisions if one.decision.applied]
    assert tried.decision.predicted_gain > 1
    assert tried.gain < 1
    assert (back.decision.action, back.decision.target) == ("roll_back", 1)

    _tells(scaled, "ScaleRefused", "HorizontalPodAutoscaler theirs sets them", within=120)
    assert _workers(scaled) == 1
    windows = len(slow.status()["windows"])
    eventually(lambda: len(slow.status()["windows"]) >= windows + 4, within=90, what="windows")
    assert _workers(slow) == 1
    assert [size for size, _ in explain(slow).banned] == [2]
    theirs = explain(scaled)
    assert not _changes(theirs)
    assert any("HorizontalPodAutoscaler theirs" in one.decision.bound for one in theirs.decisions)
    _print(
        told,
        *scaled.told("ScaleRefused"),
        *format_explanation(explain(slow), 20),
        *format_explanation(theirs, 20),
    )


def test_a_quota_bounds_a_job(cluster, namespace, submit, explain):
    """With a quota for one pod the job stays, and is told which; with more room it grows."""
    apply(cluster, [_quota(namespace, 1)])
    job = submit(paced("bound", namespace, "grows", scaling__max="2"))
    line = _tells(job, "ScaleRefused", "ResourceQuota one-pod leaves 0 of pods", within=180)
    assert _workers(job) == 1
    eventually(  # it is written into the job after it was told
        lambda: any("one-pod" in one.decision.bound for one in explain(job).decisions),
        within=60, every=0.5, what="a decision that knows the quota",
    )  # fmt: skip
    apply(cluster, [_quota(namespace, 2)])
    Sizes(job).until(2, within=120)
    _print(line, *format_explanation(explain(job), 20))


def _suspended(name: str, namespace: str, **labels: str) -> dict:
    job = paced(name, namespace, "grows")
    job["spec"]["runPolicy"] = {"suspend": True}
    job["metadata"]["labels"] |= labels
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    template["containers"][0]["image"] = "none"
    return job


def test_jobs_that_are_not_ours_to_scale(cluster, namespace, explain):
    """A suspended job and one of Kueue's: each is told why it is left alone, and explain says so.
    One whose own elasticPolicy.metrics makes an HPA is not admitted with scaling.mode auto."""
    kueue = {"kueue.x-k8s.io/queue-name": "q"}
    for name, labels, why in (
        ("waits", {}, "the job is suspended"),
        ("queued", kueue, "Kueue admitted it"),
    ):
        apply(cluster, [_suspended(name, namespace, **labels)])
        job = RunningJob(cluster, namespace, name)
        _tells(job, "ScaleRefused", why, within=30)
        explained = explain(job)
        assert explained.unmanaged_reason
        assert _workers(job) == 1
        _print(*job.told("ScaleRefused"), *format_explanation(explained, 20))

    measured = _suspended("measured", namespace)
    measured["spec"]["elasticPolicy"]["metrics"] = _hpa(namespace, "measured")["spec"]["metrics"]
    with pytest.raises(CommandFailed, match="metrics makes an autoscaler of its own"):
        apply(cluster, [measured])

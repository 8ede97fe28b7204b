# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job of three that loses one for a while, again and again, and trains on with two meanwhile.

The weights are not those of a training with three all the time, to the bit: what is summed over two
ranks is not what is summed over three. So the loss is compared, within a stated tolerance.
"""

from __future__ import annotations

import time

import pytest
from chaos import calm, journal, shrinking
from chaos.scene import Scene
from chaos.shrinking import Shrinking
from testcluster import jobs, journaled_job
from testcluster.jobs import RunningJob
from testcluster.journaled_job import newest, resumed, trains_with
from testcluster.objects import apply

from tests.support.waiting import eventually

RANKS, FEWEST = 3, 2
STEPS = 2400
"""A multiple of shrinking.WINDOW; more than are made while things break."""
_ONE_A_NODE = {
    "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": "digits"}},
    "topologyKey": "kubernetes.io/hostname",
}
_EXPLAINS = ("TrainingProcessFailed", "MemberLost", "MemberLeft", "PodLost")

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("controller")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[int, float]:
    """Losses of the same training with three ranks all the time."""
    lines = calm.train(tmp_path_factory.mktemp("undisturbed"), RANKS, STEPS)
    found = journal.losses(lines)
    assert sorted(found) == list(range(1, STEPS + 1))
    return found


@pytest.fixture
def scene(  # noqa: PLR0917 - all of them are broken
    cluster, namespace, with_trainer, checkpoints, faults, node_faults, controller, toolbox_image
) -> Scene:
    """The job: three workers on three nodes, of which two may train."""
    options = ("--steps", str(STEPS), "--samples-per-second", "200")
    job = journaled_job.made(namespace, *options, pods=RANKS, fewest=FEWEST)
    job["metadata"]["annotations"] |= {
        "rover-kf.io/checkpoint.every": "10",
        "rover-kf.io/failures.restarts": "3",
    }
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_ONE_A_NODE]}
    }
    apply(cluster, [with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)])
    running = RunningJob(cluster, namespace, job["metadata"]["name"])
    return Scene(
        cluster, running, faults, node_faults, checkpoints, checkpoints, controller, namespace,
        toolbox_image,
    )  # fmt: skip


@pytest.mark.at_length
def test_a_job_that_shrinks_ends_as_well(scene, checkpoints, undisturbed, hurry):
    """Each fault costs no sealed step, the others train while it lasts, an Event names the pod, and
    all train again once it is over. The loss stays within the tolerance of the undisturbed run."""
    trains_with(checkpoints, RANKS)
    for scenario in shrinking.SCENARIOS:
        _shrink_and_grow(scene, checkpoints, scenario)
    assert newest(checkpoints)[1] < STEPS, "it ended while things broke"
    hurry()
    assert eventually(scene.job.verdict, within=300, every=1, what="the job's end") == "Succeeded"

    found = journal.losses(scene.lines())
    assert set(range(1, STEPS + 1)) == set(found), "every step was made, by all of a world"
    windows = shrinking.windows(found, undisturbed)
    furthest = max(windows, key=lambda one: one.apart)
    print(f"\n{furthest}: {furthest.apart:.4f} apart; the last: {windows[-1]}")
    assert [one for one in windows if one.apart > shrinking.TOLERANCE] == []


def _shrink_and_grow(scene: Scene, folder, scenario: Shrinking) -> None:
    pod = scene.pod(scenario.role)
    sealed = eventually(
        lambda: scene.job.status().get("sealed_step"), within=60, every=0.3, what="a sealed step"
    )
    known, formed = _explained(scene.job, pod), _shrank(scene.job)
    at = time.monotonic()
    with scenario.fault(scene):
        if scenario.lasts:
            eventually(
                lambda: time.monotonic() > at + scenario.lasts,
                within=scenario.lasts + 1, what="the fault has lasted",
            )  # fmt: skip
        smaller = trains_with(folder, FEWEST, after=at) - at
        assert all(line.step >= sealed for line in resumed(folder, at))
        over, step = newest(folder)
    # Only now: the controller, which tells it, may have been on the node that was cut off.
    eventually(
        lambda: _explained(scene.job, pod) - known,
        within=60, every=0.5, what=f"an Event that names {pod}",
    )  # fmt: skip
    back = trains_with(folder, RANKS, after=over) - over
    assert all(line.step >= step for line in resumed(folder, over)), "a newcomer costs no step"
    why = eventually(
        lambda: _shrank(scene.job) - formed, within=60, every=0.5, what="an Event of the new world"
    )
    print(
        f"\n{scenario.name}: two train after {smaller:.1f} s, three {back:.1f} s after its end; "
        f"{sorted(_explained(scene.job, pod) - known)}; {sorted(why)}"
    )


def _shrank(job: RunningJob) -> set[str]:
    """Messages of Events that tell of a smaller world, and what ended the one before."""
    text = f"{FEWEST} processes in {FEWEST} pods; the one before ended: "
    return {message for message in job.told("WorldFormed") if text in message}


def _explained(job: RunningJob, pod: str) -> set[str]:
    """Messages of Events that tell what ended a round, and name the pod."""
    return {
        event["message"]
        for event in job.events()
        if event["reason"] in _EXPLAINS and pod in event["message"]
    }

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One job on the real cluster while things break around it, one at a time and two at once.

In CI a choice of scenarios; ``pytest tests/cluster/test_chaos.py --chaos all`` takes all,
``--chaos random --chaos-seed 7`` all in an order by chance, ``--chaos clock`` those so named.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from chaos import calm, journal, matrix, scenarios, verdict
from chaos.scenarios import Scenario
from chaos.scene import Scene
from chaos.verdict import Cost
from testcluster import jobs, settings, small_disk
from testcluster.jobs import RunningJob
from testcluster.objects import apply

from tests.support.waiting import eventually

RANKS = 2
FIRST_STEPS, STEPS_EACH = 500, 220
"""How long the training is: it must not end before the last fault is overcome."""
WARM_STEPS = 45
"""Before the first fault, and between two: at least two saves."""
DISK_MEBIBYTES = 24
_ONE_A_NODE = {
    "labelSelector": {"matchLabels": {"training.kubeflow.org/job-name": "digits"}},
    "topologyKey": "kubernetes.io/hostname",
}
_OUT = settings.REPOSITORY / "build" / "bench"

pytestmark = [pytest.mark.timeout(2400), pytest.mark.usefixtures("controller")]


@pytest.fixture(scope="module")
def chosen(pytestconfig) -> Sequence[Scenario]:
    """The faults of this run, in their order."""
    seed = pytestconfig.getoption("--chaos-seed")
    found = scenarios.chosen(pytestconfig.getoption("--chaos"), seed)
    print(f"\n{len(found)} faults, seed {seed}:", *(one.name for one in found), sep="\n  ")
    return found


@pytest.fixture(scope="module")
def steps(chosen) -> int:
    """That the training makes."""
    return FIRST_STEPS + STEPS_EACH * len(chosen)


def _manifest(namespace: str, steps: int) -> dict:
    """Two workers on two nodes, no fewer: its weights do not depend on who was away."""
    job = jobs.digits(namespace, "--steps", str(steps), "--samples-per-second", "320", traced=False)
    job["metadata"]["annotations"] |= {
        "rover-kf.io/checkpoint.path": "/checkpoints/disk",
        "rover-kf.io/scaling.mode": "off",
        "rover-kf.io/failures.restarts": "100000",
    }
    job["spec"]["elasticPolicy"] = {"minReplicas": RANKS, "maxReplicas": RANKS}
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    # A killed launcher's container starts again in its pod; ExitCode would replace the pod.
    worker["restartPolicy"] = "OnFailure"
    pod = worker["template"]["spec"]
    pod["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_ONE_A_NODE]}
    }
    container = pod["containers"][0]
    program, *given = container["command"]
    container["command"] = [program, "/tools/journaled.py", *given]
    return job


@pytest.fixture
def scene(  # noqa: PLR0917 - all of them are broken
    cluster, namespace, make_namespace, with_trainer, checkpoints, faults, node_faults, controller,
    toolbox_image, steps,
) -> Iterator[Scene]:  # fmt: skip
    """The job, training."""
    job = with_trainer(_manifest(namespace, steps), scripts=jobs.SAMPLES, tools=jobs.TOOLS)
    with small_disk.mounted(cluster, checkpoints / "disk", DISK_MEBIBYTES) as disk:
        apply(cluster, [job])
        yield Scene(
            cluster,
            RunningJob(cluster, namespace, job["metadata"]["name"]),
            faults,
            node_faults,
            checkpoints,
            disk,
            controller,
            make_namespace("privileged"),
            toolbox_image,
        )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, steps) -> dict[int, str]:
    """Digests of the weights at every step of the same training, to which nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    lines = calm.train(folder, RANKS, steps)
    found = {line.step: line.digest for line in lines if line.verb == "stepped"}
    assert len(found) == steps
    assert all(line.digest == found[line.step] for line in lines if line.step)
    return found


def test_training_outlives_what_breaks(  # noqa: PLR0917 - all of it is needed
    scene, undisturbed, hurry, pytestconfig, chosen, steps
):
    """After each fault training goes on from the last sealed step or where it was, an Event tells
    why, no step's weights ever differ from those of the undisturbed run, every second is accounted
    for, and the job succeeds."""
    _settled(scene, time.monotonic())
    begun, first = time.monotonic(), _status(scene)
    wish = pytestconfig.getoption("--chaos")
    wrong = []
    for scenario in chosen:
        found, broken = _overcome(scene, scenario)
        status = _status(scene)
        broken += verdict.unaccounted(status)
        broken += verdict.off_time(first, status, time.monotonic() - begun)
        wrong += [f"{scenario.name}: {told}" for told in broken]
        print(f"\n{found}", *broken, sep="\n", flush=True)
        if not broken:
            matrix.keep(_OUT / "chaos.json", wish, scenario, found)
    hurry()
    assert eventually(scene.job.verdict, within=600, every=1, what="the job's end") == "Succeeded"
    lines = scene.lines()
    assert wrong == []
    assert journal.other_bits(lines, undisturbed) == []
    assert journal.newest(lines, time.monotonic()) == steps


def _overcome(scene: Scene, scenario: Scenario) -> tuple[Cost, list[str]]:
    """Make one fault, see training go on, heal, and see it settled again."""
    sealed = _sealed(scene)
    known = _events(scene)
    at = time.monotonic()
    struck = verdict.struck_now(scenario.name, at, scene.lines(), sealed)

    def trains() -> Cost | None:
        return verdict.cost(struck, scene.lines(), RANKS, (), moves=scenario.moves)

    def told(wanted: frozenset[str]) -> tuple[str, ...]:
        new = {reason for reason, count in _events(scene).items() if count > known.get(reason, 0)}
        return tuple(sorted(new & wanted))

    with scenario.fault(scene):
        if scenario.lasts:
            eventually(
                lambda: time.monotonic() > at + scenario.lasts,
                within=scenario.lasts + 1, what="the fault has lasted",
            )  # fmt: skip
        else:
            eventually(trains, within=scenario.within, every=0.1, what=f"after {struck}: steps")
        if scenario.told and not scenario.moves:
            _told_or_nothing(told, scenario.told)  # nothing else shows that it was felt
    found = eventually(trains, within=scenario.within, every=0.1, what=f"after {struck}: steps")
    wanted = scenario.told or (scenarios.EXPLAINS if found.resumed is not None else frozenset())
    told_by = _told_or_nothing(told, wanted) if wanted else ()
    _settled(scene, time.monotonic(), durable=struck.step)
    final = Cost(found.name, found.seconds, found.resumed, found.steps_lost, found.source, told_by)
    return final, verdict.broken(struck, final, wanted)


def _told_or_nothing(told, wanted: frozenset[str]) -> tuple[str, ...]:
    try:
        return eventually(lambda: told(wanted), within=60, every=0.5)
    except AssertionError:
        return ()  # what is missing is judged with the rest


def _settled(scene: Scene, since: float, durable: int = 0) -> None:
    """Both ranks have gone on for some steps, and that step or a newer one is on storage."""

    def on() -> bool:
        lines = [line for line in scene.lines() if line.at > since and line.verb == "stepped"]
        return all(sum(line.rank == rank for line in lines) >= WARM_STEPS for rank in range(RANKS))

    eventually(on, within=240, every=0.3, what=f"{WARM_STEPS} steps of every rank")
    what = f"step {durable} or a newer one on storage"
    eventually(
        lambda: (scene.job.status().get("durable_step") or 0) >= durable,
        within=60, every=0.5, what=what,
    )  # fmt: skip


def _sealed(scene: Scene) -> int:
    return eventually(
        lambda: scene.job.status().get("sealed_step"), within=60, every=0.3, what="a sealed step"
    )


def _status(scene: Scene) -> dict[str, Any]:
    return eventually(scene.job.status, within=60, every=0.3, what="a status")


def _events(scene: Scene) -> dict[str, int]:
    """How often each reason was told."""
    found: dict[str, int] = {}
    for event in scene.job.events():
        count = event.get("count") or (event.get("series") or {}).get("count") or 1
        found[event["reason"]] = found.get(event["reason"], 0) + count
    return found

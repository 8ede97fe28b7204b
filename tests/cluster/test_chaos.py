# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One job on the real cluster while things break around it, one at a time and two at once.

In CI a choice of scenarios; ``pytest tests/cluster/test_chaos.py --chaos all`` takes all.
"""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest
from chaos import journal, matrix, verdict
from chaos.scenarios import SCENARIOS, Scenario
from chaos.scene import Scene
from chaos.verdict import Cost
from testcluster import host_python, jobs, settings
from testcluster.jobs import RunningJob
from testcluster.objects import apply
from tests_support import eventually

STEPS, RANKS = 3000, 2
WARM_STEPS = 45
"""Before the first fault, and between two: at least two saves."""
_OUT = settings.REPOSITORY / "build" / "bench"

pytestmark = [pytest.mark.timeout(2400), pytest.mark.usefixtures("controller")]


def _manifest(namespace: str) -> dict:
    """Two workers, no fewer: its weights do not depend on who was away."""
    job = jobs.digits(namespace, "--steps", str(STEPS), "--samples-per-second", "320", traced=False)
    job["metadata"]["annotations"] |= {
        "rover-kf.io/scaling.mode": "off",
        "rover-kf.io/failures.restarts": "100000",
    }
    job["spec"]["elasticPolicy"] = {"minReplicas": RANKS, "maxReplicas": RANKS}
    worker = job["spec"]["pytorchReplicaSpecs"]["Worker"]
    # A killed launcher's container starts again in its pod; ExitCode would replace the pod.
    worker["restartPolicy"] = "OnFailure"
    container = worker["template"]["spec"]["containers"][0]
    program, *given = container["command"]
    container["command"] = [program, "/tools/journaled.py", *given]
    return job


@pytest.fixture
def scene(  # noqa: PLR0917 - all of them are broken
    cluster, namespace, make_namespace, with_trainer, checkpoints, faults, node_faults, controller,
    toolbox_image,
) -> Scene:  # fmt: skip
    """The job, training."""
    job = with_trainer(_manifest(namespace), scripts=jobs.SAMPLES, tools=jobs.TOOLS)
    apply(cluster, [job])
    running = RunningJob(cluster, namespace, job["metadata"]["name"])
    outside = make_namespace("privileged")
    return Scene(
        cluster, running, faults, node_faults, checkpoints, controller, outside, toolbox_image
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[int, str]:
    """Digests of the weights at every step of the same training, to which nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    python = host_python.torch_environment() / "bin" / "python"
    launch = ["-m", "torch.distributed.run", f"--nproc-per-node={RANKS}", "--standalone"]
    script = [jobs.TOOLS / "journaled.py", jobs.SAMPLES / "digits.py", "--steps", str(STEPS)]
    environment = {
        **os.environ,
        "JOURNAL": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(settings.REPOSITORY),
    }
    done = subprocess.run(
        [python, *launch, *script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = journal.read(folder)
    found = {line.step: line.digest for line in lines if line.verb == "stepped"}
    assert len(found) == STEPS
    assert all(line.digest == found[line.step] for line in lines if line.step)
    return found


def test_training_outlives_what_breaks(scene, undisturbed, hurry, pytestconfig):
    """After each fault training goes on from the last sealed step or where it was, an Event tells
    why, no step's weights ever differ from those of the undisturbed run, and the job succeeds."""
    chosen = [one for one in SCENARIOS if one.in_ci or pytestconfig.getoption("--chaos") == "all"]
    _settled(scene, time.time())
    costs, wrong = [], []
    for scenario in chosen:
        found, broken = _overcome(scene, scenario)
        costs.append(found)
        wrong += broken
        print(f"\n{found}", *broken, sep="\n", flush=True)
    hurry()
    assert eventually(scene.job.verdict, within=600, every=1, what="the job's end") == "Succeeded"
    lines = scene.lines()
    _OUT.mkdir(parents=True, exist_ok=True)
    (_OUT / "chaos.json").write_text(json.dumps(matrix.to_json(costs), indent=1) + "\n")
    print(f"\n{matrix.markdown(costs)}\n", flush=True)
    assert wrong == []
    assert journal.other_bits(lines, undisturbed) == []
    assert journal.newest(lines, time.time()) == STEPS


def _overcome(scene: Scene, scenario: Scenario) -> tuple[Cost, list[str]]:
    """Make one fault, see training go on, heal, and see it settled again."""
    sealed = _sealed(scene)
    known = _events(scene)
    at = time.time()
    struck = verdict.struck_now(scenario.name, at, scene.lines(), sealed)

    def trains() -> Cost | None:
        return verdict.cost(struck, scene.lines(), RANKS, (), moves=scenario.moves)

    with scenario.fault(scene):
        if scenario.lasts:
            eventually(
                lambda: time.time() > at + scenario.lasts,
                within=scenario.lasts + 1, what="the fault has lasted",
            )  # fmt: skip
        else:
            eventually(trains, within=scenario.within, every=0.1, what=f"after {struck}: steps")
    found = eventually(trains, within=scenario.within, every=0.1, what=f"after {struck}: steps")

    def told() -> tuple[str, ...]:
        new = {reason for reason, count in _events(scene).items() if count > known.get(reason, 0)}
        return tuple(sorted(new)) if not scenario.told or new & scenario.told else ()

    reasons = _told_or_nothing(told)
    _settled(scene, time.time())
    told_by = tuple(reason for reason in reasons if reason in scenario.told)
    final = Cost(found.name, found.seconds, found.resumed, found.steps_lost, found.source, told_by)
    return final, verdict.broken(struck, final, scenario.told)


def _told_or_nothing(told) -> tuple[str, ...]:
    try:
        return eventually(lambda: (told(),) if told() else (), within=30, every=0.5)[0]
    except AssertionError:
        return ()  # what is missing is judged with the rest


def _settled(scene: Scene, since: float) -> None:
    """Both ranks have gone on for some steps, and what they did is sealed."""

    def on() -> bool:
        lines = [line for line in scene.lines() if line.at > since and line.verb == "stepped"]
        return all(sum(line.rank == rank for line in lines) >= WARM_STEPS for rank in range(RANKS))

    eventually(on, within=240, every=0.3, what=f"{WARM_STEPS} steps of every rank")


def _sealed(scene: Scene) -> int:
    return eventually(
        lambda: scene.job.status().get("sealed_step"), within=60, every=0.3, what="a sealed step"
    )


def _events(scene: Scene) -> dict[str, int]:
    """How often each reason was told."""
    found: dict[str, int] = {}
    for event in scene.job.events():
        count = event.get("count") or (event.get("series") or {}).get("count") or 1
        found[event["reason"]] = found.get(event["reason"], 0) + count
    return found

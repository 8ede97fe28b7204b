# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many parameter servers, of how many cores, by what setups of earlier runs have brought."""

from __future__ import annotations

import copy
import dataclasses

import pytest

from rover_kf.api.records import RunRecord, ServerSetup
from rover_kf.api.samples import Throughput
from rover_kf.recommender import job_signature as reading
from rover_kf.recommender import parameter_servers
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.price import PriceTable
from rover_kf.recommender.recommend import combine_evidence, recommend

GIB = float(1 << 30)
COUNTS = {"Chief": 1, "Worker": 4, "PS": 1}
BASE = ServerSetup(0.0, 4, 1, 1.0, 0.5)


def manifest(**cores):
    container = {"name": "tensorflow", "image": "ctr:1", "command": ["python", "train.py"]}
    specs = {
        kind: {
            "replicas": count,
            "template": {"spec": {"containers": [copy.deepcopy(container)]}},
        }
        for kind, count in COUNTS.items()
    }
    for kind, each in cores.items():
        (trainer,) = specs[kind]["template"]["spec"]["containers"]
        trainer["resources"] = {"limits": {"cpu": each, "memory": "2Gi"}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "ctr", "namespace": "team"},
        "spec": {"tfReplicaSpecs": specs},
    }


FACTS = reading.from_manifest(manifest(Worker="1", PS="500m"))


def seconds(setup):
    """Of a worker's step: its servers' cores are what it waits for."""
    return 0.1 + 0.1 / setup.worker_cores + 0.2 * setup.workers / setup.servers / setup.server_cores


def run(*setups, uid="u1", **changes):
    """Five windows of a minute under each setup, one after the other."""
    windows, told = [], []
    for number, setup in enumerate(setups):
        began = 300.0 * number
        told.append(dataclasses.replace(setup, since=began))
        steps = round(60 * setup.workers / seconds(setup))
        windows += [
            Throughput(began + 60 * i, began + 60 * (i + 1), 1, 1, steps, 0, 0.1, 32.0)
            for i in range(5)
        ]
    record = RunRecord(
        uid=uid,
        signature=FACTS.signature,
        started_at=0.0,
        updated_at=windows[-1].ended_at,
        outcome="succeeded",
        requested={"replicas": 4.0},
        peak={},
        windows=tuple(windows),
        servers=tuple(told),
    )
    return dataclasses.replace(record, **changes)


MORE = dataclasses.replace(BASE, server_cores=1.0)
TWO = dataclasses.replace(BASE, servers=2)


def test_a_manifest_tells_its_setup():
    """Limits before requests; one core where neither is stated; none of other jobs."""
    assert FACTS.setup == BASE
    assert reading.server_setup(manifest(PS="2")) == dataclasses.replace(BASE, server_cores=2.0)
    alone = manifest()
    del alone["spec"]["tfReplicaSpecs"]["PS"]
    assert reading.from_manifest(alone).setup is None


def test_setups_of_earlier_runs_tell_the_cheapest():
    """Servers that all wait for get more cores, as far as twice of what was seen."""
    found = combine_evidence(FACTS, [run(BASE, MORE), run(TWO, uid="u2")])
    cores, many = found.get("server_cpu"), found.get("servers")
    assert (cores.basis, cores.effective_samples) == ("history", 3.0)
    assert many.target * cores.target > 1.0
    assert cores.lower <= cores.target <= cores.upper
    assert "steps/s, by 3 setups that were measured" in cores.why
    assert found.get("replicas").target == 4, "a TFJob keeps its workers"


def test_one_setup_leaves_the_manifest_its_word():
    """And nothing is made up of it."""
    for runs in ((), (run(BASE),), (run(BASE, servers=()),)):
        found = combine_evidence(FACTS, runs)
        assert [found.get(name).basis for name in ("replicas", "servers", "server_cpu")] == [
            "manifest"
        ] * 3
        assert (found.get("servers").target, found.get("server_cpu").target) == (1.0, 0.5)


def test_a_run_of_another_script_is_not_asked():
    """It has another law."""
    other = dataclasses.replace(FACTS.signature, command="python other.py")
    found = combine_evidence(FACTS, [run(BASE, MORE, signature=other)])
    assert found.get("server_cpu").basis == "manifest"


def test_a_server_holds_its_share_of_the_state():
    """Twelve bytes a parameter over the servers, and TensorFlow itself."""
    found = recommend(manifest(PS="500m"), parameters=1e9).get("server_memory")
    assert found.basis == "formula"
    assert found.lower == pytest.approx(12e9 + (600 << 20))
    assert found.target == pytest.approx(1.25 * found.lower)
    assert recommend(manifest(PS="500m")).get("server_memory") is None


def test_servers_cost_what_they_have():
    """Beside chief and workers."""
    table = PriceTable(cpu=1.0)
    cost = combine_evidence(FACTS, [], None, Constraints(), prices=table).cost
    assert cost.per_hour == pytest.approx(5 * 1.0 + 1 * 0.5)
    assert cost.why.endswith("1 PS; no run alike has shown how long it takes")


def test_effects_are_told_of_what_is_in_reach():
    """Of more workers too little is seen; of servers' cores enough."""
    law = parameter_servers.fit_model([run(BASE, MORE)])
    told = {effect.description: effect for effect in parameter_servers.forecast_setups(law, MORE)}
    assert set(told) == {"5 workers", "2 PS", "PS of 2 cores", "workers of 2 cores"}
    more = told["PS of 2 cores"]
    truth = seconds(MORE) / seconds(dataclasses.replace(MORE, server_cores=2.0))
    assert more.gain == pytest.approx(truth, rel=0.15)
    assert more.lower < more.steps_per_second < more.upper
    assert parameter_servers.fit_model([run(BASE)]) is None

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TF_CONFIG is read as the operator writes it; without one, or with a wrong one, the error says."""

from __future__ import annotations

import json
import types

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.launcher import preload
from rover_kf.trainer.tensorflow import TensorFlowCheckpointer, dynamic_cluster, tf_config
from rover_kf.trainer.tensorflow.shared_records import SharedRecords

CLUSTER = {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"], "ps": ["d:2222"]}


def written(task, index, **cluster):
    """As the operator writes it."""
    told = {"cluster": cluster or CLUSTER, "task": {"type": task, "index": index}}
    return {"TF_CONFIG": json.dumps({**told, "environment": "cloud"})}


def test_files_go_through_the_process_that_saves():
    """Beside parameter servers its device is named, without them each process writes its own."""
    chief = tf_config.read(written("chief", 0), 1)
    assert chief.files_device == "/job:chief/replica:0/task:0/device:CPU:0"
    assert not chief.serves
    for task in ("worker", "ps"):
        assert tf_config.read(written(task, 0), 1).serves
    alone = tf_config.read(written("worker", 1, worker=["b:1", "c:1"]), 2)
    assert (alone.files_device, alone.serves, alone.index) == (None, False, 1)
    assert tf_config.read({}, 1) is None


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "TF_CONFIG is not set, and there are 2 processes; .* container tensorflow"),
        ({"TF_CONFIG": "{"}, "JSON with cluster and task"),
        ({"TF_CONFIG": "[]"}, "JSON with cluster and task"),
        ({"TF_CONFIG": '{"cluster": {}}'}, "JSON with cluster and task"),
        ({"TF_CONFIG": '{"cluster": {}, "task": {"type": "ps", "index": "x"}}'}, "JSON with"),
    ],
)
def test_a_missing_or_broken_one_is_refused(environment, says):
    """In a world of several processes none can do without."""
    with pytest.raises(errors.InputError, match=says):
        tf_config.read(environment, 2)


def test_a_server_saves_nothing(monkeypatch):
    """A script that lets a parameter server come to the checkpoint is told what it is."""
    for name, value in written("ps", 0).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.InputError, match="this process is ps 0 beside parameter servers"):
        TensorFlowCheckpointer(None)


def test_saves_are_due_in_strides():
    """Several batches an execution pass a multiple of ``every`` without hitting it."""
    checkpointer = TensorFlowCheckpointer(None, every=10)
    assert [step for step in (3, 9, 12, 20) if checkpointer.is_due(step)] == [12, 20]
    with pytest.raises(errors.InputError, match="every is 0; 1 or more"):
        TensorFlowCheckpointer(None, every=0)


def test_outside_of_rover_kf_nothing_happens():
    """The same lines run anywhere, and TensorFlow's checkpoint is not touched."""
    checkpointer = TensorFlowCheckpointer(types.SimpleNamespace(), every=1)
    assert checkpointer.restore() == 0
    checkpointer.step(1)
    checkpointer.save(1)
    assert checkpointer.kept("place.json") is None
    assert checkpointer.restored_from == "none"
    checkpointer.close()


def test_torch_is_loaded_for_torchs_jobs_alone():
    """TensorFlow's processes are forked from a bare Python: its threads would not be in a fork."""
    assert preload.has_torch({})
    assert not preload.has_torch(written("chief", 0))


def sparse(task, index, **changes):
    """As the operator writes it where workers come and go, and what rover-kf adds."""
    worker = {str(index): "b:2222"} if task == "worker" else {}
    cluster = {"worker": worker, "ps": ["d:2222"] if task != "chief" else []}
    told = {"cluster": cluster, "task": {"type": task, "index": index}}
    known = {"chief": ["a:1"], "ps": ["d:1", "e:1"], "worker": ["b:1", "c:1", "f:1"]}
    return {"TF_CONFIG": json.dumps(told), "ROVER_TF_CLUSTER": json.dumps(known), **changes}


def test_clients_know_servers_and_themselves_and_servers_know_all():
    """So that a worker waits for nobody, and is found when it comes."""
    worker = dynamic_cluster.read(sparse("worker", 2))
    assert worker.cluster == {"ps": {0: "d:1", 1: "e:1"}, "worker": {2: "f:1"}}
    assert worker.filters == ("/job:ps", "/job:worker/task:2")
    assert worker.servers == 2
    chief = dynamic_cluster.read(sparse("chief", 0))
    assert chief.cluster == {"ps": {0: "d:1", 1: "e:1"}, "chief": {0: "a:1"}}
    server = dynamic_cluster.read(sparse("ps", 1))
    assert server.cluster["worker"] == {0: "b:1", 1: "c:1", 2: "f:1"}
    assert set(server.cluster) == {"chief", "ps", "worker"}


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (sparse("worker", 3), "this process is worker 3"),
        (sparse("worker", 0, ROVER_TF_CLUSTER="["), "JSON with the addresses"),
        (sparse("worker", 0, ROVER_TF_CLUSTER=""), "sets it in a labelled TFJob"),
        (sparse("worker", 0, TF_CONFIG=""), "TF_CONFIG is not set"),
    ],
)
def test_a_place_that_is_none_is_refused(environment, says):
    """A worker beyond the bound above all."""
    with pytest.raises(errors.InputError, match=says):
        dynamic_cluster.read(environment)


def test_records_are_lent_under_rover_kf_alone(monkeypatch):
    """There is no ledger elsewhere, and a parameter server takes none."""
    for name, value in sparse("worker", 0).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ROVER_HOME", raising=False)
    with pytest.raises(errors.InputError, match="under rover-kf; this process is none"):
        SharedRecords(10, batch=2)


@pytest.mark.parametrize("cluster", [{}, {"worker": ["b:1", "c:1"], "chief": ["a:1"]}])
def test_servers_that_shall_write_have_to_be_there(monkeypatch, cluster):
    """A script alone, or one of mirrored workers, is told what to take out of the job."""
    monkeypatch.setenv(names.ENV_CHECKPOINT_SHARDS, "/shards/job")
    for name, value in (written("chief", 0, **cluster) if cluster else {}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(errors.InputError, match=r"no parameter server .*remove .*shards from"):
        TensorFlowCheckpointer(None)

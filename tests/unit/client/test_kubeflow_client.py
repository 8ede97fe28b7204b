# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Beside kubeflow's clients: their models are taken, their connection, their verbs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib
import inspect

import kubeflow.training as kft
import kubernetes.client
import pytest
from local_jobs import job, replica

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.client import RoverClient, manifests, settings, submission
from tests.support.faults import api_stand_in
from tests.support.jobs.job_manifests import make_job


@pytest.fixture
def told(tmp_path):
    return settings.read({}, state=tmp_path / "state")


def _model():
    container = kubernetes.client.V1Container(
        name="pytorch", image="torch:1", command=["torchrun", "train.py"]
    )
    template = kubernetes.client.V1PodTemplateSpec(
        spec=kubernetes.client.V1PodSpec(containers=[container])
    )
    worker = kft.KubeflowOrgV1ReplicaSpec(replicas=2, restart_policy="OnFailure", template=template)
    return kft.KubeflowOrgV1PyTorchJob(
        api_version="kubeflow.org/v1",
        kind="PyTorchJob",
        metadata=kubernetes.client.V1ObjectMeta(name="fit", namespace="team"),
        spec=kft.KubeflowOrgV1PyTorchJobSpec(
            run_policy=kft.KubeflowOrgV1RunPolicy(clean_pod_policy="None"),
            pytorch_replica_specs={"Worker": worker},
        ),
    )


def test_a_model_is_the_manifest_that_kubeflow_would_send(told):
    """Field by field what kubeflow's own client makes of it; and it can be patched."""
    model = _model()
    sent = kubernetes.client.ApiClient().sanitize_for_serialization(model)
    assert submission.manifest_of(model) == sent
    with RoverClient(config=told) as rover:
        patched = rover.patch(model).manifest
    assert patched["metadata"]["labels"]["rover-kf.io/inject"] == "true"


def test_what_is_no_manifest_is_refused():
    """A model that holds anything else is refused with the type."""
    model = _model()
    model.metadata.creation_timestamp = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    told = submission.manifest_of(model)["metadata"]["creationTimestamp"]
    assert told == "2026-01-01T00:00:00+00:00"
    model.metadata.annotations = {"key": object()}
    with pytest.raises(errors.InputError, match="holds a object; allowed"):
        submission.manifest_of(model)


def test_a_training_client_lends_its_connection(told):
    """The same server, credentials and namespace; kubeflow's verbs read and write."""
    with api_stand_in.serving() as server:
        configuration = server.client().configuration
        theirs = kft.TrainingClient(client_configuration=configuration, namespace="team")
        with RoverClient(theirs, config=told) as rover:
            rover.create_job(_model())
            path = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/fit"
            assert server.objects[path]["metadata"]["labels"]["rover-kf.io/inject"] == "true"
            assert rover.get_job("fit").key.namespace == "team"
            other = f"{path.rsplit('/', 2)[0]}/tfjobs/other"
            labels = server.objects[path]["metadata"]["labels"]
            metadata = {"name": "other", "namespace": "team", "labels": labels}
            server.put(other, {"metadata": metadata, "spec": {"tfReplicaSpecs": {}}})
            assert [found.key.name for found in rover.list("team")] == ["fit", "other"]
            assert [found.key.name for found in rover.list_jobs()] == ["fit"]
            assert not rover.is_job_created("fit")
            ended = {"type": "Succeeded", "status": "True"}
            status = {"conditions": [{"type": "Created", "status": "True"}, ended]}
            server.put(path, {**server.objects[path], "status": status})
            assert rover.is_job_created("fit")
            assert rover.is_job_succeeded("fit")
            assert rover.wait_for_job_conditions("fit").phase == "Succeeded"
            assert theirs.is_job_succeeded("fit", namespace="team")
            rover.delete_job("fit")
            with pytest.raises(errors.NoSuchJob):
                rover.get_job("fit")
        assert {headers["authorization"] for *_, headers in server.requests} == {"Bearer caller"}


def test_a_training_client_of_tfjobs_lends_its_kind(told):
    """What is called by its name alone is a TFJob then; a PyTorchJob is asked for by its kind."""
    group = "/apis/kubeflow.org/v1/namespaces/team"
    with api_stand_in.serving() as server:
        server.put(f"{group}/pytorchjobs/wide", make_job(name="wide"))
        running = {"conditions": [{"type": "Running", "status": "True"}]}
        wide = {**make_job(kind="TFJob", name="wide"), "status": running}
        server.put(f"{group}/tfjobs/wide", wide)
        theirs = kft.TrainingClient(
            client_configuration=server.client().configuration, namespace="team", job_kind="TFJob"
        )
        with RoverClient(theirs, config=told) as rover:
            key = JobKey("team", "wide", "TFJob")
            assert rover.get_job("wide").key == key
            assert [found.key for found in rover.list_jobs()] == [key]
            assert [found.key for found in rover.list_jobs(job_kind="PyTorchJob")] == [
                JobKey("team", "wide")
            ]
            assert rover.is_job_running("wide")
            assert not rover.is_job_running("wide", None, "PyTorchJob")
            ended = {"conditions": [{"type": "Succeeded", "status": "True"}]}
            server.put(f"{group}/tfjobs/wide", {**wide, "status": ended})
            assert rover.wait_for_job_conditions("wide").key == key
            assert rover.follow(key).last.phase == "Succeeded"
            rover.delete_job("wide")
            assert list(server.objects) == [f"{group}/pytorchjobs/wide"]
            with pytest.raises(errors.InputError, match="'MPIJob'; allowed: PyTorchJob or TFJob"):
                rover.get_job("wide", job_kind="MPIJob")


def test_a_name_has_its_kind_in_front():
    """As on the command line; in the namespace ``default``."""
    assert manifests.to_key("wide") == JobKey("default", "wide")
    assert manifests.to_key("tfjob/wide") == JobKey("default", "wide", "TFJob")
    with pytest.raises(errors.InputError, match="calls no job"):
        manifests.to_key("mpijob/wide")


def test_kubeflows_verbs_are_those_of_kubeflow():
    """Each of our names is one of theirs; words that may be given without their name stand in the
    same places."""
    ours = [name for name in dir(RoverClient) if "_job" in name and not name.startswith("_")]
    assert len(ours) >= 10
    missing = [name for name in ours if not hasattr(kft.TrainingClient, name)]
    assert missing == []
    for name in ours:
        own, other = (_by_place(getattr(kind, name)) for kind in (RoverClient, kft.TrainingClient))
        assert own == other[: len(own)], name


def _by_place(verb):
    """Names of the parameters that may be given by their place."""
    told = inspect.signature(verb).parameters.values()
    return [one.name for one in told if one.kind is one.POSITIONAL_OR_KEYWORD]


def test_the_verbs_work_embedded(told):
    """A job of this machine is created, waited for and read by kubeflow's names."""
    with RoverClient(config=dataclasses.replace(told)) as rover:
        rover.cluster.create_job(job("small", worker=replica("echo said")))
        assert rover.wait_for_job_conditions("small", wait_timeout=60).phase == "Succeeded"
        assert rover.get_job_logs("small") == {"small-worker-0": "said\n"}
        assert [pod.name for pod in rover.get_job_pods("small")] == ["small-worker-0"]
        with pytest.raises(errors.InputError, match="one of job and train_func"):
            rover.create_job()
        with pytest.raises(errors.JobFailed, match="small is Succeeded"):
            rover.wait_for_job_conditions("small", expected_conditions={"Failed"})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # its own models' use of pydantic
def test_kubeflow_0_5_stands_beside_it():
    """The SDK of Trainer v2 is imported in the same process, and neither minds the other."""
    trainer = importlib.import_module("kubeflow.trainer")
    assert trainer.TrainerClient
    assert kft.TrainingClient


BEFORE = ("train", "submit", "recommend", "patch", "diagnose")
WHILE_IT_RUNS = ("get", "list", "wait", "watch", "logs", "events", "scale", "pause", "resume")
VERBS = (*BEFORE, *WHILE_IT_RUNS, "explain", "report", "delete")


@pytest.mark.parametrize("verb", VERBS)
def test_the_client_has_every_verb(verb):
    """Each is there under its name, and documented."""
    assert getattr(RoverClient, verb).__doc__

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A task's own settings in the training pods, and who a step is."""

from __future__ import annotations

import copy

from rover_kf.api import names
from rover_kf.pipeline_steps import manifest_changes, step_context
from rover_kf.pipeline_steps.step_context import StepContext


def manifest():
    container = {
        "name": "pytorch",
        "image": "digits:1",
        "command": ["python", "train.py"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    pod = {"containers": [{"name": "other", "image": "x"}, container], "nodeSelector": {"a": "b"}}
    replica = {"replicas": 2, "template": {"spec": pod}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": names.PYTORCHJOB,
        "metadata": {"name": "digits"},
        "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": copy.deepcopy(replica)}},
    }


def test_a_tasks_settings_win_in_every_replica():
    """Resources, variables, volumes, tolerations, selector and affinity, whole numbers whole; the
    other containers and the manifest itself are left as they were."""
    given = manifest()
    before = copy.deepcopy(given)
    made = manifest_changes.apply_settings(
        given,
        {
            "resources": {"limits": {"memory": "8Gi", "nvidia.com/gpu": "1"}, "claims": None},
            "env": [{"name": "B", "value": "2"}],
            "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}],
            "volume_mounts": [{"name": "c", "mountPath": "/data"}],
            "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 300.0}],
            "node_selector": {"zone": "z1"},
            "affinity": {"podAffinity": {"weight": 1.0}},
        },
    )
    assert given == before
    for spec in made["spec"]["pytorchReplicaSpecs"].values():
        pod = spec["template"]["spec"]
        other, trainer = pod["containers"]
        assert other == {"name": "other", "image": "x"}
        assert trainer["resources"] == {
            "requests": {"cpu": "1", "memory": "2Gi"},
            "limits": {"memory": "8Gi", "nvidia.com/gpu": "1"},
        }
        assert trainer["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
        assert trainer["volumeMounts"] == [{"name": "c", "mountPath": "/data"}]
        assert pod["volumes"] == [{"name": "c", "persistentVolumeClaim": {"claimName": "c"}}]
        assert pod["nodeSelector"] == {"a": "b", "zone": "z1"}
        assert str(pod["tolerations"][0]["tolerationSeconds"]) == "300"
        assert str(pod["affinity"]["podAffinity"]["weight"]) == "1"


def test_no_settings_change_nothing():
    """As kfp gives them where the task states none, and where no backend fills them in."""
    nothing = dict.fromkeys(("resources", "env", "volumes", "volume_mounts", "tolerations"))
    given = manifest()
    assert manifest_changes.apply_settings(given, {**nothing, "affinity": {}}) is given


def test_a_step_is_known_by_its_pod():
    """Run and Workflow stand on the pod; a container that was started again is another attempt."""
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "u"}
    pod = {
        "metadata": {
            "name": "w-launch-1",
            "namespace": "team",
            "labels": {step_context.RUN_LABEL: "run-1"},
            "ownerReferences": [{"kind": "Other", "name": "x"}, {**owner, "controller": True}],
        },
        "status": {"containerStatuses": [{"name": "main", "restartCount": 1}, {"name": "wait"}]},
    }
    assert step_context.from_pod(pod) == StepContext("run-1", "w-launch-1:1", "team", owner)
    assert step_context.from_pod(pod, "run-2").run == "run-2"
    del pod["metadata"]["labels"], pod["status"]
    assert step_context.from_pod(pod).run == "u", "the Workflow's, where the backend says no other"
    del pod["metadata"]["ownerReferences"]
    assert step_context.from_pod(pod) == StepContext("", "w-launch-1:0", "team", None)

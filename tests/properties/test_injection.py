# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What holds of inject() whatever the job looks like."""

from __future__ import annotations

import copy
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api import names
from rover_kf.injection.inject import inject, remove
from rover_kf.injection.settings import InjectionSettings
from tests.support.jobs.job_manifests import pod_of, three_way_patch, trainer_of

SETTINGS = InjectionSettings("rover-kf-sidecar:1", "rover-kf-system:rover-kf-controller")

words = st.text("abcdefgh-_=./ $(){}\"'\\\n0123é", max_size=12)
name = st.from_regex(r"[a-z]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)
scalar = st.one_of(words, st.integers(-5, 5), st.booleans(), st.none())
leaf = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(name, inner, max_size=2),
    max_leaves=4,
)
"""Whatever else a manifest may hold; keys of it never mean anything to us."""

programs = st.sampled_from(
    ["torchrun", "/opt/bin/torchrun", "python", "python3.11", "/usr/bin/python3", "sh", "bash"]
)
heads = st.sampled_from(
    [
        [],
        ["-u"],
        ["-m", "torch.distributed.run"],
        ["-u", "-m", "torch.distributed.launch", "--use-env"],
        ["-m", "torch.distributed.launch"],
        ["-m", "pkg.main"],
        ["-c", "import x"],
        ["train.py"],
        ["-W", "ignore", "train.py"],
        ["/rover/runtime/rover_run.py"],
        ["/rover/runtime/rover-run", "x"],
    ]
)


@st.composite
def lines(draw):
    """Command and args: one argv, cut anywhere, either of them perhaps missing."""
    argv = [draw(programs), *draw(heads), *draw(st.lists(words, max_size=3))]
    cut = draw(st.integers(0, len(argv)))
    found = {"command": argv[:cut], "args": argv[cut:]}
    dropped = draw(st.sampled_from(["", "", "command", "args"]))
    return {key: value for key, value in found.items() if key != dropped}


@st.composite
def trainers(draw):
    """A container named pytorch with odd but legal parts."""
    trainer = {"name": "pytorch", "image": "i", **draw(lines())}
    variables = st.fixed_dictionaries({"name": name, "value": words})
    python_path = {"name": "PYTHONPATH", "value": draw(words)}
    odd = draw(st.sampled_from([[], [python_path]]))
    if draw(st.booleans()):
        trainer["env"] = draw(st.lists(variables, max_size=2)) + odd
    if draw(st.booleans()):
        memory = draw(st.sampled_from(["1Gi", "512M", "300Mi", "2"]))
        kinds = draw(st.sampled_from(["limits", "requests"]))
        trainer["resources"] = {kinds: {"memory": memory, "cpu": "1"}}
    if draw(st.booleans()):
        trainer["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    if draw(st.booleans()):
        trainer["securityContext"] = {"runAsUser": draw(st.integers(0, 3000))}
    trainer["unrelated"] = draw(leaf)
    return trainer


@st.composite
def replicas(draw, kind):
    """A replica spec with neighbours of the trainer."""
    others = [{"name": "logger", "image": "l", "unrelated": draw(leaf)}]
    containers = draw(st.permutations([draw(trainers()), *others[: draw(st.integers(0, 1))]]))
    pod = {"containers": list(containers), "unrelated": draw(leaf)}
    if draw(st.booleans()):
        pod["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]
    if draw(st.booleans()):
        pod["initContainers"] = [{"name": "fetch", "image": "f", "unrelated": draw(leaf)}]
    if draw(st.booleans()):
        pod["terminationGracePeriodSeconds"] = draw(st.integers(0, 90))
    if draw(st.booleans()):
        pod["securityContext"] = {"fsGroup": 5, "unrelated": draw(leaf)}
    spec = {"template": {"spec": pod, "unrelated": draw(leaf)}, "unrelated": draw(leaf)}
    if kind == "Master" or draw(st.booleans()):
        spec["replicas"] = 1 if kind == "Master" else draw(st.integers(1, 4))
    if draw(st.booleans()):
        spec["restartPolicy"] = draw(st.sampled_from(["Never", "OnFailure", "ExitCode"]))
    return spec


@st.composite
def jobs(draw):
    """A valid PyTorchJob."""
    specs = {"Worker": draw(replicas("Worker"))}
    if draw(st.booleans()):
        specs["Master"] = draw(replicas("Master"))
    spec = {"pytorchReplicaSpecs": specs, "unrelated": draw(leaf)}
    if draw(st.booleans()):
        spec["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 4}
    if draw(st.booleans()):
        spec["nprocPerNode"] = draw(st.sampled_from(["auto", "2", "gpu"]))
    if draw(st.booleans()):
        spec["runPolicy"] = {"schedulingPolicy": {"queue": "q"}, "unrelated": draw(leaf)}
    metadata = {"name": draw(name), "namespace": "team", "unrelated": draw(leaf)}
    if draw(st.booleans()):
        metadata["labels"] = {"mine": "1"}
    if draw(st.booleans()):
        metadata["annotations"] = {"mine": "1", names.PREFIX + "checkpoint.every": "3"}
    mounts = [trainer_of({"spec": spec}, kind).get("volumeMounts") for kind in specs]
    if all(mounts) and draw(st.booleans()):
        metadata.setdefault("annotations", {})[names.PREFIX + "checkpoint.path"] = "/data/x"
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": spec,
    }


def injected(job):
    return inject(job, settings=SETTINGS).manifest


@given(jobs())
@settings(deadline=None)
def test_twice_is_once(job):
    """inject(inject(m)) == inject(m), also after a trip through JSON; the input stays as it was."""
    before = copy.deepcopy(job)
    once = injected(job)
    assert job == before
    assert json.loads(json.dumps(once)) == once
    assert injected(once) == once
    again = json.loads(json.dumps(once, sort_keys=True))
    assert injected(again) == once
    assert once == injected(job)


@given(jobs())
@settings(deadline=None)
def test_an_apply_of_the_same_file_is_undone(job):
    """Whatever a merge patch of the user's own file replaced, re-injection restores exactly."""
    once = injected(job)
    assert injected(three_way_patch(job, job, once)) == once


@given(jobs(), jobs())
@settings(deadline=None)
def test_an_apply_of_another_file_is_a_job_of_that_file(job, other):
    """After an apply of another file, containers are what injecting that file alone gives."""
    other["metadata"]["name"] = job["metadata"]["name"]
    merged = injected(three_way_patch(job, other, injected(job)))
    direct = injected(other)
    specs = direct["spec"]["pytorchReplicaSpecs"]
    assert merged["spec"]["pytorchReplicaSpecs"].keys() == specs.keys()
    for kind in specs:
        ours, theirs = trainer_of(merged, kind), trainer_of(direct, kind)
        assert {k: ours.get(k) for k in ("command", "args", "env", "volumeMounts")} == {
            k: theirs.get(k) for k in ("command", "args", "env", "volumeMounts")
        }
    assert injected(merged) == merged


@given(jobs())
@settings(deadline=None)
def test_taking_away_gives_the_users_pod_back(job):
    """remove(inject(m)) has the containers, volumes and init containers of remove(m)."""
    plain, bare = remove(job), remove(injected(job))
    for kind in job["spec"]["pytorchReplicaSpecs"]:
        for key in ("volumes", "initContainers", "containers", "unrelated"):
            assert _lists(pod_of(bare, kind).get(key)) == _lists(pod_of(plain, kind).get(key))
    assert bare["metadata"].get("annotations", {}) == plain["metadata"].get("annotations", {})


@given(jobs())
@settings(deadline=None)
def test_what_is_not_ours_is_not_touched(job):
    """Other containers, and fields that mean nothing to us at any level, stay equal."""
    once = injected(job)
    assert once["metadata"]["unrelated"] == job["metadata"]["unrelated"]
    assert once["spec"]["unrelated"] == job["spec"]["unrelated"]
    changed = {"pytorchReplicaSpecs", "runPolicy"}
    assert {k: v for k, v in once["spec"].items() if k not in changed} == {
        k: v for k, v in job["spec"].items() if k not in changed
    }
    for kind, spec in job["spec"]["pytorchReplicaSpecs"].items():
        found = once["spec"]["pytorchReplicaSpecs"][kind]
        assert found["unrelated"] == spec["unrelated"]
        assert found["template"]["unrelated"] == spec["template"]["unrelated"]
        pod, before = pod_of(once, kind), pod_of(job, kind)
        assert [c["name"] for c in pod["containers"]] == [c["name"] for c in before["containers"]]
        assert _others(pod) == _others(before)
        assert trainer_of(once, kind)["unrelated"] == trainer_of(job, kind)["unrelated"]
        assert pod["initContainers"][2:] == before.get("initContainers", [])
        assert pod["volumes"][:-2] == before.get("volumes", [])


def _others(pod):
    return [container for container in pod["containers"] if container["name"] != "pytorch"]


def _lists(value):
    """An empty list of variables or mounts says the same as none."""
    if isinstance(value, list):
        return [_lists(item) for item in value]
    if isinstance(value, dict):
        return {k: _lists(v) for k, v in value.items() if not (k == "env" and v == [])}
    return value

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The review of a job at the API server's door."""

from __future__ import annotations

import base64
import copy
import json

import pytest

from rover_kf import errors
from rover_kf.api import names
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from rover_kf.webhook import admission
from tests.support.jobs.job_manifests import (
    container_of,
    make_job,
    three_way_patch,
    trainer_of,
)

SETTINGS = InjectionSettings("rover-kf-sidecar:1", "rover-kf-system:rover-kf-controller")
LAST = "kubectl.kubernetes.io/last-applied-configuration"


def ask(
    job, *, operation="CREATE", old=None, manager="kubectl-create", defaults=None, settings=SETTINGS
):
    """Review, and give the answer and the object as the API server would store it."""
    request = {
        "uid": "r1",
        "operation": operation,
        "namespace": "team",
        "object": job,
        "oldObject": old,
        "options": {"fieldManager": manager},
    }
    posted = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    before = copy.deepcopy(posted)
    answer = json.loads(json.dumps(admission.review(posted, settings=settings, defaults=defaults)))
    assert posted == before
    assert answer["response"]["uid"] == "r1"
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    stored = copy.deepcopy(job)
    if "patch" in answer["response"]:
        assert answer["response"]["patchType"] == "JSONPatch"
        for operation_ in json.loads(base64.b64decode(answer["response"]["patch"])):
            assert operation_["op"] == "add"
            *parents, last = operation_["path"].strip("/").split("/")
            owner = stored
            for key in parents:
                owner = owner[key]
            owner[last] = operation_["value"]
    return answer["response"], stored


def test_a_labelled_job_is_injected():
    """CREATE of a labelled job is allowed with the patch that inject() would make."""
    job = make_job()
    response, stored = ask(job)
    assert response["allowed"]
    assert stored == inject(job, settings=SETTINGS).manifest


def test_an_unlabelled_job_is_untouched():
    """Without the label, or with another value, the job is allowed without a patch."""
    for labels in ({}, {names.INJECT_LABEL: "false"}, None):
        job = make_job()
        job["metadata"]["labels"] = labels
        response, _ = ask(job)
        assert response == {"uid": "r1", "allowed": True}


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (make_job(policy={"checkpoint.evry": "1"}), "did you mean rover-kf.io/checkpoint.every"),
        (make_job(elastic=(3, 2)), "spec.elasticPolicy.minReplicas is 3"),
        (
            make_job(kind="TFJob", command=["python", "x"], policy={"preflight.mode": "report"}),
            "needs torch",
        ),
    ],
)
def test_a_wrong_job_is_refused_with_the_reason(job, says):
    """The answer has the error's own sentence, which names the job, and code 422."""
    response, _ = ask(job)
    assert not response["allowed"]
    assert response["status"]["code"] == 422
    assert says in response["status"]["message"]
    assert f"{job['kind']} team/digits" in response["status"]["message"]
    assert "patch" not in response


def test_warnings_reach_the_one_who_applies():
    """What inject() warns of stands in the answer, where kubectl prints it."""
    response, _ = ask(make_job(command=["sh", "-c", "x"]))
    assert response["allowed"]
    assert "stays as it is" in response["warnings"][0]


def test_defaults_are_used():
    """Policy of the place fills what the job does not say."""
    _, stored = ask(make_job(), defaults={"checkpoint.every": "7"})
    assert {"name": "ROVER_CHECKPOINT_EVERY", "value": "7"} in trainer_of(stored)["env"]


def applied(job):
    """The job as kubectl apply creates it, and as it is stored."""
    job = copy.deepcopy(job)
    job["metadata"].setdefault("annotations", {})[LAST] = json.dumps(job)
    return job, ask(job)[1]


def reapply(file, stored, **options):
    merged = three_way_patch(file, file, stored)
    manager = options.pop("manager", admission.APPLY_MANAGER)
    return ask(merged, operation="UPDATE", old=stored, manager=manager, **options)


def test_a_second_apply_changes_nothing():
    """UPDATE by the user's unchanged file gives the stored object again."""
    file, stored = applied(make_job(mount={"name": "c", "mountPath": "/c"}))
    response, again = reapply(file, stored)
    assert response["allowed"]
    assert again == stored
    untouched, same = ask(stored, operation="UPDATE", old=stored)
    assert same == stored
    assert "patch" not in untouched


def test_a_second_apply_keeps_the_image():
    """A job keeps the sidecar's image of its creation when the controller has a newer one."""
    file, stored = applied(make_job())
    _, again = reapply(file, stored, settings=InjectionSettings("rover-kf-sidecar:2"))
    image = container_of(again, names.SIDECAR_CONTAINER)["image"]
    assert image == "rover-kf-sidecar:1"


AUTO = {"scaling.mode": "auto", "scaling.min": "1", "scaling.max": "4"}


def scaled_to(stored, replicas):
    """The stored job after the controller's patch."""
    after = copy.deepcopy(stored)
    after["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = replicas
    return ask(after, operation="UPDATE", old=stored, manager="controller")[1]


def test_a_second_apply_keeps_scaled_replicas():
    """Under mode auto the controller's number stays, and whoever applies is told."""
    file, stored = applied(make_job(policy=AUTO))
    stored = scaled_to(stored, 3)
    response, again = reapply(file, stored)
    assert again == stored
    assert "replicas stays 3" in response["warnings"][0]


@pytest.mark.parametrize(
    ("policy", "manager"), [(AUTO, "kubectl-patch"), ({**AUTO, "scaling.mode": "recommend"}, None)]
)
def test_other_ways_to_set_replicas_are_obeyed(policy, manager):
    """A patch by hand, and an apply of a job that rover-kf does not scale, set the number."""
    file, stored = applied(make_job(policy=policy))
    options = {"manager": manager} if manager else {}
    _, again = reapply(file, scaled_to(stored, 3), **options)
    assert again["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2


def test_a_changed_file_sets_replicas():
    """Under mode auto a file that differs from the one applied before is obeyed."""
    file, stored = applied(make_job(policy=AUTO))
    stored = scaled_to(stored, 3)
    changed, _ = applied(make_job(policy=AUTO, workers=4))
    merged = three_way_patch(file, changed, stored)
    manager = admission.APPLY_MANAGER
    _, again = ask(merged, operation="UPDATE", old=stored, manager=manager)
    assert again["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 4


def test_a_job_that_started_plain_stays_plain():
    """A job created while no webhook answered is not changed under its running pods."""
    job = make_job()
    response, stored = ask(job, operation="UPDATE", old=job)
    assert response["allowed"]
    assert stored == job
    assert "created without rover-kf" in response["warnings"][0]


def test_an_update_to_a_wrong_policy_is_refused():
    """A mistake in an edit is refused like one at creation."""
    _, stored = applied(make_job())
    edited = copy.deepcopy(stored)
    edited["metadata"]["annotations"]["rover-kf.io/scaling.mode"] = "yes"
    response, _ = ask(edited, operation="UPDATE", old=stored)
    assert not response["allowed"]


def test_a_job_that_is_being_deleted_is_let_go():
    """Whatever it looks like, an update of a deleted job passes: finalizers must be able to end."""
    _, stored = applied(make_job())
    stored["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    stored["metadata"]["annotations"]["rover-kf.io/scaling.mode"] = "yes"
    assert ask(stored, operation="UPDATE", old=stored)[0] == {"uid": "r1", "allowed": True}


def test_other_operations_pass():
    """DELETE and CONNECT carry no object to change."""
    assert ask(None, operation="DELETE", old=make_job())[0] == {"uid": "r1", "allowed": True}


@pytest.mark.parametrize("posted", [{}, {"request": None}, {"request": {}}, {"request": "x"}])
def test_what_is_no_review_is_said(posted):
    """A body that is no AdmissionReview raises ProtocolError."""
    with pytest.raises(errors.ProtocolError, match="AdmissionReview"):
        admission.review(posted, settings=SETTINGS)


def raised_to(stored, limit):
    """What the controller writes after a kill for memory."""
    after = copy.deepcopy(stored)
    trainer_of(after)["resources"]["limits"]["memory"] = limit
    told = json.dumps({"Worker": ["1Gi", limit]})
    after["metadata"]["annotations"][names.MEMORY_RAISED_ANNOTATION] = told
    return ask(after, operation="UPDATE", old=stored, manager="controller")[1]


def test_a_raised_limit_changes_nothing_but_the_trainer():
    """The arena and the sidecar are of the size that the stated limit gives."""
    _, stored = applied(make_job(policy={"memory.max": "4Gi"}))
    after = raised_to(stored, "2Gi")
    assert trainer_of(after)["resources"]["limits"]["memory"] == "2Gi"
    trainer_of(after)["resources"] = trainer_of(stored)["resources"]
    assert after["spec"] == stored["spec"]


def test_a_second_apply_keeps_a_raised_limit():
    """The same file keeps it; a file with another limit is obeyed."""
    policy = {"memory.max": "4Gi"}
    file, stored = applied(make_job(policy=policy))
    stored = raised_to(stored, "2Gi")
    _, again = reapply(file, stored)
    assert again == stored
    changed, _ = applied(make_job(policy=policy, memory="3Gi"))
    merged = three_way_patch(file, changed, stored)
    _, again = ask(merged, operation="UPDATE", old=stored, manager=admission.APPLY_MANAGER)
    assert trainer_of(again)["resources"]["limits"]["memory"] == "3Gi"
    bare = make_job(policy=policy, memory="3Gi")
    assert container_of(again, names.SIDECAR_CONTAINER) == container_of(
        ask(bare)[1], names.SIDECAR_CONTAINER
    )


def test_a_tfjob_is_injected_and_keeps_its_size():
    """Applying its file again changes nothing; fewer workers than TF_CONFIG names are refused."""
    job = make_job(kind="TFJob", command=["python", "x.py"])
    file, stored = applied(job)
    assert stored["metadata"]["annotations"][names.INJECTED_ANNOTATION]
    assert reapply(file, stored)[1] == stored
    smaller = copy.deepcopy(stored)
    smaller["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 1
    response, _ = ask(smaller, operation="UPDATE", old=stored)
    assert not response["allowed"]
    assert "Worker.replicas is 1; allowed: 2 while the job runs" in response["status"]["message"]
    stored["spec"]["runPolicy"] = smaller["spec"]["runPolicy"] = {"suspend": True}
    assert ask(smaller, operation="UPDATE", old=stored)[0]["allowed"]


def test_a_second_apply_keeps_a_raised_cpu_limit():
    """That of a PS; the job's own file states the one before."""
    file, stored = applied(_with_server())
    server = stored["spec"]["tfReplicaSpecs"]["PS"]["template"]["spec"]["containers"][0]
    before = copy.deepcopy(stored)
    server["resources"]["limits"]["cpu"] = "2"
    stored["metadata"]["annotations"][names.CPU_RAISED_ANNOTATION] = '{"PS": ["500m", "2"]}'
    _, stored = ask(stored, operation="UPDATE", old=before, manager="controller")
    assert reapply(file, stored)[1] == stored


def test_a_second_apply_keeps_the_workers_and_servers_that_were_added():
    """Under mode auto, through a suspension, and whoever applies is told; under another mode the
    file's numbers are tried, and refused while it runs."""
    for mode in ("auto", "recommend"):
        policy = {"scaling.mode": mode, "scaling.max": "4", "scaling.ps-max": "2"}
        file, stored = applied(_with_server(policy))
        before = copy.deepcopy(stored)
        before["spec"]["runPolicy"] = {"suspend": True}
        specs = stored["spec"]["tfReplicaSpecs"]
        specs["Worker"]["replicas"], specs["PS"]["replicas"] = 4, 2
        _, stored = ask(stored, operation="UPDATE", old=before, manager="controller")
        response, again = reapply(file, stored)
        assert response["allowed"] == (mode == "auto")
        if mode == "auto":
            assert again == stored
            assert ["Worker.replicas stays 4" in line for line in response["warnings"]] == [1, 0]
            assert ["PS.replicas stays 2" in line for line in response["warnings"]] == [0, 1]


def _with_server(policy=None):
    """A TFJob with a chief, workers, and a PS of half a core."""
    told = policy or {"cpu.max": "4"}
    job = make_job(kind="TFJob", command=["python", "x.py"], policy=told)
    specs = job["spec"]["tfReplicaSpecs"]
    specs |= {kind: {**copy.deepcopy(specs["Worker"]), "replicas": 1} for kind in ("Chief", "PS")}
    (container,) = specs["PS"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"memory": "1Gi", "cpu": "500m"}}
    return job

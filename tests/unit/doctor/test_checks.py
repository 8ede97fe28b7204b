# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of a cluster in order, and of each thing that may be wrong with one."""

from __future__ import annotations

import base64
import dataclasses

import pytest

from rover_kf.doctor import controller_checks, dry_run_objects, pod_checks, rbac, volume_claims
from rover_kf.doctor.api_query import ListResult, ObjectResult
from rover_kf.doctor.diagnose import check_facts
from rover_kf.doctor.rbac import MissingPermissions
from rover_kf.doctor.volume_claims import VolumeClaimState
from rover_kf.webhook.certificates import issue
from tests.support import healthy_cluster as sound

change = dataclasses.replace
FACTS = sound.facts()
NODES = FACTS.versions.nodes
LATER = 400 * 86400.0
OTHER = base64.b64encode(issue(["other"], sound.NOW).authority).decode()


def _scaled_to(replicas):
    def apply(deployment):
        deployment["spec"]["replicas"] = replicas
        deployment["status"] = {}

    return apply


def _tagged(image):
    def apply(deployment):
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] = image

    return apply


def _nodes(*nodes):
    return change(FACTS, versions=change(FACTS.versions, nodes=ListResult(nodes)))


def _server(version):
    return change(
        FACTS, versions=change(FACTS.versions, server=ObjectResult({"gitVersion": version}))
    )


def _operator(apply=lambda _: None, **seen):
    return change(FACTS, operator=change(sound.operator(apply), **seen))


def _admission(hook=None, secret=None, tried=None, **seen):
    return change(FACTS, admission=change(sound.admission(hook, secret, tried), **seen))


def _pods(refusal="", job=None, nodes=NODES, **seen):
    return change(FACTS, pods=sound.pods(nodes, refusal, job), **seen)


def _claims(found, classes=()):
    every = VolumeClaimState(sound.NAMESPACE, {"data": found}, ListResult(tuple(classes)), 2)
    return change(FACTS, claims=every)


def _images(**seen):
    return change(FACTS, images=change(FACTS.images, **seen))


def _plain():
    job = sound.injected()
    del job["metadata"]["annotations"]["rover-kf.io/injected"]
    return ObjectResult(job)


def _without_sidecars():
    job = sound.injected()
    for item in job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["initContainers"]:
        item.pop("restartPolicy", None)
    return ObjectResult(job)


def _waiting_job(**spec):
    made = {"metadata": {"name": "still", "creationTimestamp": "2023-11-14T22:00:00Z"}}
    return ListResult(({**made, "spec": spec},))


def _with_shm(size):
    job = sound.injected()
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["volumes"].append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    pod["containers"][0]["volumeMounts"].append({"name": "shm", "mountPath": "/dev/shm"})
    return job


def _held(node, image):
    return {**node, "status": {**node["status"], "images": [{"names": [image]}]}}


ELSEWHERE = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["other"]}]}
HOOK_CALL = 'failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org": refused'
FORBIDDEN = 'User "me" cannot create resource "pods" in API group ""'

CASES = [
    # the cluster itself
    (_server("v1.28.9"), "kubernetes", "broken", "v1.28.9", "1.29"),
    (_server("mine"), "kubernetes", "unknown", "'mine'", ""),
    (_nodes(sound.node("old", "v1.27.1")), "nodes", "broken", "old (v1.27.1)", "1.29"),
    (_nodes(), "nodes", "broken", "no nodes", "add a node"),
    (change(FACTS, namespace_object=ObjectResult()), "namespace", "broken", "no namespace team",
     "kubectl create"),
    # the caller
    (change(FACTS, permissions=MissingPermissions("", (rbac.REQUIRED[0],))),
     "rights", "broken", "may not create pytorchjobs in team", "kubeflow-edit"),
    (change(FACTS, permissions=MissingPermissions("", tuple(rbac.OPTIONAL)[:1])),
     "rights", "warning", "get pods/log (rover-kf logs)", "clusterrole=edit"),
    (change(FACTS, permissions=MissingPermissions("", denial="no")), "rights", "unknown", "no",
     "ask somebody"),
    # the Training Operator
    (_operator(kinds=ObjectResult()), "training-operator", "broken", "knows no PyTorchJobs",
     "install"),
    (_operator(deployments=ListResult()), "training-operator", "broken", "no deployment",
     "install"),
    (_operator(deployments=ListResult(denial="no")),
     "training-operator", "unknown", "no", "list deployments"),
    (_operator(_scaled_to(0)), "training-operator", "broken", "not running", "--replicas=1"),
    (_operator(_scaled_to(2)), "training-operator", "broken", "2 wanted", "kubectl logs"),
    (_operator(injected_dry_run=ObjectResult(denial=HOOK_CALL)),
     "training-operator", "broken", "failed calling webhook", "rollout restart"),
    (_operator(_tagged("x/operator:v1-4485b0a")), "training-operator", "good", "1.9 or newer", ""),
    (_operator(jobs=_waiting_job()), "operator-acting", "broken", "said of still", "log"),
    (_operator(jobs=_waiting_job(runPolicy={"suspend": True})),
     "operator-acting", "good", "all 1 jobs", ""),
    (_operator(jobs=_waiting_job(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"})),
     "operator-acting", "good", "all 1 jobs", ""),
    (_operator(injected_dry_run=_without_sidecars()), "native-sidecars", "broken", "drops", "1.8"),
    (_operator(injected_dry_run=ObjectResult(),
     definition=ObjectResult(sound.definition(native=False))),
     "native-sidecars", "broken", "drops", "1.8"),
    (_operator(injected_dry_run=ObjectResult(), definition=ObjectResult(denial="no")),
     "native-sidecars", "unknown", "no", "ask somebody"),
    # the controller
    (change(FACTS, controller=sound.controller(deployments=ListResult())),
     "controller", "broken", "no controller in rover-kf-system", "kubectl apply -k"),
    (change(FACTS, controller=sound.controller(_scaled_to(0))),
     "controller", "broken", "scaled to 0", "--replicas=1"),
    (change(FACTS, controller=sound.controller(
        _scaled_to(1), pods=ListResult((sound.waiting_pod("c", "ErrImagePull", "not found"),)))),
     "controller", "broken", "ErrImagePull: not found", "kubectl describe"),
    (change(FACTS, controller=sound.controller(
        rights=MissingPermissions("system:serviceaccount:a:b", (controller_checks.REQUIRED[3],)))),
     "controller-rights", "broken", "may not patch pytorchjobs", "kubectl apply -k"),
    # the webhook
    (_admission(configuration=ObjectResult()),
     "webhook", "broken", "no MutatingWebhook", "kubectl apply"),
    (_admission({"name": "another"}), "webhook", "broken", "has no webhook", "kubectl apply"),
    (_admission({"namespaceSelector": ELSEWHERE}), "webhook", "broken", "leaves this", "selector"),
    (_admission({"clientConfig": {}}), "webhook", "broken", "caBundle", "rollout restart"),
    (_admission({"clientConfig": {"caBundle": OTHER}}),
     "webhook", "broken", "not the authority", "rollout restart"),
    (_admission(secret={"tls.crt": ""}), "webhook", "broken", "not a webhook's", "delete secret"),
    (change(FACTS, now=sound.NOW + LATER), "webhook", "broken", "has ended", "delete secret"),
    (_admission(service=ObjectResult()), "webhook", "broken", "no service", "kubectl apply"),
    (_admission(endpoints=ListResult()), "webhook", "broken", "no pod that is ready", "controller"),
    (_admission(tried=_plain()), "webhook", "broken", "not injected", "9443"),
    (_admission(tried=ObjectResult(denial="quota")), "webhook", "unknown", "quota",
     "other findings"),
    (_admission(configuration=ObjectResult(denial="no"), tried=_plain()),
     "webhook", "unknown", "no", "ask somebody"),
    (_admission(configuration=ObjectResult(denial="no")), "webhook", "good", "is injected", ""),
    # pods
    (_pods('pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot'),
     "pods", "broken", "violates PodSecurity", "securityContext"),
    (_pods("exceeded quota: small"), "pods", "broken", "exceeded quota", "ResourceQuota"),
    (_pods("failed quota: q: must specify limits.cpu for: rover-runtime,rover-sidecar"),
     "pods", "broken", "must specify", "a LimitRange with a default CPU limit"),
    (_pods("something else"), "pods", "broken", "something else", "change the job"),
    (_pods(FORBIDDEN), "pods", "unknown", "cannot create", "create pods in team"),
    (_pods(nodes=ListResult((sound.node("tiny", memory="100Mi"),))),
     "memory", "broken", "100 MiB", "checkpoint.arena"),
    (_pods(nodes=ListResult(denial="no")), "memory", "unknown", "no", "list nodes"),
    (_pods(is_user_job=True), "shm", "warning", "64 MiB", "emptyDir"),
    (_pods(job=_with_shm("1Gi"), is_user_job=True), "shm", "broken", "may grow to 1Gi",
     "sizeLimit"),
    (_pods(job=_with_shm("64Mi"), is_user_job=True), "shm", "good", "64Mi", ""),
    # storage
    (_claims(ObjectResult()), "storage", "broken", "no claim data", "create the claim"),
    (_claims(ObjectResult(denial="no")), "storage", "unknown", "no", "ask somebody"),
    (_claims(ObjectResult(sound.claim("Lost"))), "storage", "broken", "lost its volume", "bring"),
    (_claims(ObjectResult(sound.claim(mode="ReadWriteOnce"))),
     "storage", "broken", "up to 2 pods", "ReadWriteMany"),
    (_claims(ObjectResult(sound.claim("Pending"))), "storage", "broken", "class fast", "none yet"),
    (_claims(ObjectResult(sound.claim("Pending", chosen=None)), [sound.storage_class("slow")]),
     "storage", "broken", "no default one", "slow"),
    (_claims(ObjectResult(sound.claim("Pending")), [sound.storage_class("fast")]),
     "storage", "warning", "Pending, not Bound", "describe pvc"),
    (_claims(ObjectResult(sound.claim("Pending")),
             [sound.storage_class("fast", mode="WaitForFirstConsumer")]),
     "storage", "good", "when a pod mounts it", ""),
    (change(FACTS, claims=VolumeClaimState(sound.NAMESPACE, {}, ListResult(), 2)),
     "storage", "warning", "no default storage class", "s3://"),
    # images
    (_images(pods=ListResult((sound.waiting_pod("p", "ImagePullBackOff", "denied"),))),
     "images", "broken", "p: ImagePullBackOff: denied", "imagePullSecrets"),
    (_images(pods=ListResult((sound.waiting_pod("p", "CreateContainerError", "x"),))),
     "images", "good", "no pod", ""),
    (_images(sidecar="rover-kf-sidecar:0.1.0"),
     "sidecar-image", "warning", "names no registry", "ROVER_SIDECAR_IMAGE"),
    (_images(sidecar="here:1",
             nodes=ListResult((_held(sound.node("n"), "docker.io/library/here:1"),))),
     "sidecar-image", "good", "every node has it", ""),
]  # fmt: skip


def test_nothing_is_said_against_a_sound_cluster():
    """All is good, and nothing is left to be mended."""
    found = list(check_facts(FACTS))
    assert [item for item in found if item.verdict != "good" or item.fix] == []
    assert len(found) >= 12


@pytest.mark.parametrize(("facts", "check", "verdict", "words", "mend"), CASES)
def test_each_fault_is_named_with_its_cure(facts, check, verdict, words, mend):
    """One changed fact changes one finding; its words have the fact and what to do."""
    found = [item for item in check_facts(facts) if item.check == check]
    assert [item.verdict for item in found] == [verdict]
    assert words in found[0].message
    assert mend in found[0].fix
    assert bool(found[0].fix) == (verdict != "good") or not mend


def test_a_tfjob_is_tried_as_what_it_is():
    """Its replica types, its operator's label and its policy where none is stated."""
    plain = dry_run_objects.example_job("a")
    worker = plain["spec"].pop("pytorchReplicaSpecs")["Worker"]
    worker["template"]["spec"]["containers"][0]["name"] = "tensorflow"
    del worker["restartPolicy"], plain["spec"]["elasticPolicy"]
    job = {**plain, "kind": "TFJob", "spec": {"tfReplicaSpecs": {"Chief": worker}}}
    pod = dry_run_objects.first_pods(dry_run_objects.with_label(job, "a"), "a")["Chief"]
    assert pod["metadata"]["name"].endswith("-chief-0")
    assert pod["metadata"]["labels"]["training.kubeflow.org/operator-name"] == "tfjob-controller"
    assert pod["spec"]["restartPolicy"] == "Never"
    assert volume_claims.claim_names(job) == set()


def test_what_is_tried_is_what_would_run():
    """The pod that is tried has the operator's labels; the job has a name that nobody uses."""
    first, second = (
        dry_run_objects.with_label(dry_run_objects.example_job("a"), "b") for _ in range(2)
    )
    assert first["metadata"]["name"] != second["metadata"]["name"]
    assert first["metadata"]["namespace"] == "b"
    (pod,) = dry_run_objects.first_pods(first, "b").values()
    assert pod["metadata"]["labels"]["training.kubeflow.org/replica-index"] == "0"
    assert pod["spec"]["restartPolicy"] == "OnFailure"
    assert pod_checks.sidecar_image(first) == ""
    assert pod_checks.sidecar_image(sound.injected()) == sound.IMAGE

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""`rover-kf doctor` finds what was broken on a real cluster, and nothing once it is mended."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable, Iterator

import pytest
import yaml
from testcluster import admission, deployment, jobs, objects, training_operator
from testcluster.cluster import Cluster
from testcluster.objects import Object, apply

from rover_kf.cluster.kubernetes import config as kubernetes_config
from rover_kf.doctor import Diagnosis, Finding, diagnose
from rover_kf.injection.settings import InjectionSettings
from rover_kf.webhook.certificates import issue
from tests.support.waiting import eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("controller")]

WEBHOOK, CONTROLLER = "rover-kf-webhook", "rover-kf-controller"
SCHEMA = (
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/pytorchReplicaSpecs"
    "/additionalProperties/properties/template/properties/spec/properties/initContainers/items"
    "/properties/restartPolicy"
)
"""Where the definition of PyTorchJobs has native sidecars."""

Broken = contextlib.AbstractContextManager[object]


@pytest.fixture
def doctor(cluster, namespace):
    """Look at the cluster as its administrator, with a job or without."""
    if not isinstance(cluster, Cluster):
        pytest.skip("the cluster of --kubeconfig is not ours: its parts cannot be broken")
    api = kubernetes_config.from_environment(kubeconfig=str(cluster.kubeconfig)).api

    def look(job: Object | None = None) -> Diagnosis:
        return diagnose(api, namespace, job, settings=_settings())

    return look


def _settings() -> InjectionSettings:
    return InjectionSettings(sidecar_image="localhost/rover-kf-sidecar:dev")


# -- set-ups of the cluster ------------------------------------------------------------------------


@contextlib.contextmanager
def _without_configuration(cluster) -> Iterator[None]:
    kind = "mutatingwebhookconfiguration"
    kept = json.loads(cluster.kubectl("get", kind, WEBHOOK, "-o", "json"))
    cluster.kubectl("delete", kind, WEBHOOK)
    yield
    kept["metadata"] = {key: kept["metadata"][key] for key in ("name", "labels")}
    cluster.kubectl("create", "-f", "-", text=json.dumps(kept))


@contextlib.contextmanager
def _with_another_authority(cluster) -> Iterator[None]:
    kind, path = "mutatingwebhookconfiguration", "/webhooks/0/clientConfig/caBundle"
    kept = json.loads(cluster.kubectl("get", kind, WEBHOOK, "-o", "json"))
    other = base64.b64encode(issue(["somebody.else"], time.time()).authority).decode()
    _json_patch(cluster, kind, WEBHOOK, "replace", path, other)
    yield
    right = kept["webhooks"][0]["clientConfig"]["caBundle"]
    _json_patch(cluster, kind, WEBHOOK, "replace", path, right)


@contextlib.contextmanager
def _with_a_service_to_nowhere(cluster) -> Iterator[None]:
    path = "/spec/selector/app.kubernetes.io~1component"
    where = ("-n", deployment.NAMESPACE)
    _json_patch(cluster, "service", WEBHOOK, "replace", path, "nobody", *where)
    yield
    _json_patch(cluster, "service", WEBHOOK, "replace", path, "controller", *where)


@contextlib.contextmanager
def _without_the_binding(cluster) -> Iterator[None]:
    kept = json.loads(cluster.kubectl("get", "clusterrolebinding", CONTROLLER, "-o", "json"))
    cluster.kubectl("delete", "clusterrolebinding", CONTROLLER)
    yield
    kept["metadata"] = {key: kept["metadata"][key] for key in ("name", "labels")}
    cluster.kubectl("create", "-f", "-", text=json.dumps(kept))


@contextlib.contextmanager
def _with_a_definition_of_1_7(cluster) -> Iterator[None]:
    kind, name = "customresourcedefinition", "pytorchjobs.kubeflow.org"
    _json_patch(cluster, kind, name, "remove", SCHEMA)
    yield
    _json_patch(cluster, kind, name, "add", SCHEMA, {"type": "string"})


@contextlib.contextmanager
def _with_a_pod_without_its_image(cluster, namespace: str) -> Iterator[None]:
    pod = objects.toolbox("lost", namespace, ["true"], image="localhost/nowhere:1")
    pod["spec"]["containers"][0]["imagePullPolicy"] = "Never"
    apply(cluster, [pod])
    yield
    cluster.kubectl("-n", namespace, "delete", "pod", "lost", "--grace-period=0", "--force")


@contextlib.contextmanager
def _with_a_quota(cluster, namespace: str) -> Iterator[None]:
    metadata = {"name": "small", "namespace": namespace}
    spec = {"hard": {"limits.memory": "1200Mi"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": spec}
    apply(cluster, [quota])
    yield
    cluster.kubectl("-n", namespace, "delete", "resourcequota", "small")


@contextlib.contextmanager
def _with_a_claim_of_no_class(cluster, namespace: str) -> Iterator[None]:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": jobs.CLAIM, "namespace": namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    apply(cluster, [claim])
    yield
    cluster.kubectl("-n", namespace, "delete", "pvc", jobs.CLAIM, "--wait=false")


@contextlib.contextmanager
def _with_no_operator(cluster) -> Iterator[None]:
    where = ("-n", training_operator.NAMESPACE)
    named = f"deploy/{training_operator.DEPLOYMENT}"
    cluster.kubectl(*where, "scale", named, "--replicas=0")
    yield
    cluster.kubectl(*where, "scale", named, "--replicas=1")
    cluster.kubectl(*where, "rollout", "status", named, "--timeout=120s", timeout=150)
    admission.wait(cluster, injected=True)


def _json_patch(cluster, kind: str, name: str, op: str, path: str, *rest) -> None:
    value, where = ({"value": rest[0]} if rest else {}), rest[1:]
    change = json.dumps([{"op": op, "path": path, **value}])
    cluster.kubectl(*where, "patch", kind, name, "--type=json", "-p", change, "-o", "name")


# -- jobs that do not fit --------------------------------------------------------------------------


def _fitting(namespace: str) -> Object:
    """The digits job, without its claim, as the restricted profile wants it."""
    job = jobs.digits(namespace, traced=False)
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod["containers"][0]["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    return job


def _as_root(namespace: str) -> Object:
    return jobs.digits(namespace, traced=False)


def _too_large(namespace: str) -> Object:
    job = _fitting(namespace)
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    memory = {"memory": "900Gi"}
    pod["containers"][0]["resources"] = {"requests": memory, "limits": memory}
    return job


# -- tests -----------------------------------------------------------------------------------------


def _told(found: Diagnosis, check: str, words: str) -> Finding | None:
    return next(
        (item for item in found.broken if item.check == check and words in item.message), None
    )


def _broken(found: Diagnosis) -> list[str]:
    return [f"{item.check}: {item.message}" for item in found.broken]


def _sound(look: Callable[[], Diagnosis]) -> None:
    """Nothing is broken; what the test or the one before has just mended may need a moment."""
    with contextlib.suppress(AssertionError):  # the next line shows more
        eventually(lambda: not _broken(look()), within=60, every=0.2)
    assert _broken(look()) == []


def _found_and_mended(
    look: Callable[[], Diagnosis], broken: Broken, check: str, words: str
) -> Finding:
    with broken:
        seen = eventually(
            lambda: _told(look(), check, words), within=60, every=0.2, what=f"{check}: {words}"
        )
    assert seen.fix
    return seen


def test_ten_broken_set_ups_are_found(cluster, namespace, doctor):
    """Each is found by its own words and with a way to mend it; none before, none afterwards."""
    _sound(doctor)
    whole = [
        (_without_configuration(cluster), "webhook", "no MutatingWebhookConfiguration"),
        (_with_another_authority(cluster), "webhook", "is not the authority of secret"),
        (_with_a_service_to_nowhere(cluster), "webhook", "leads to no pod that is ready"),
        (_without_the_binding(cluster), "controller-rights", "may not get pytorchjobs"),
        (_with_a_definition_of_1_7(cluster), "native-sidecars", "drops initContainers"),
        (_with_a_pod_without_its_image(cluster, namespace), "images", "ErrImageNeverPull"),
    ]
    nothing = contextlib.nullcontext()
    with_job = [
        (nothing, "storage", f"there is no claim {jobs.CLAIM}", _fitting),
        (_with_a_claim_of_no_class(cluster, namespace), "storage", "class fast", _fitting),
        (_with_a_quota(cluster, namespace), "pods", "exceeded quota", _fitting),
        (nothing, "pods", "violates PodSecurity", _as_root),
        (nothing, "memory", "largest schedulable node", _too_large),
    ]
    seen = [_found_and_mended(doctor, broken, check, words) for broken, check, words in whole]
    for broken, check, words, make in with_job:
        job = make(namespace)
        seen.append(_found_and_mended(lambda job=job: doctor(job), broken, check, words))
    for finding in seen:
        print(f"\n{finding.check}: {finding.message}\n  mend: {finding.fix}")
    print(f"\n{len(seen)} broken set-ups found")
    assert len(seen) >= 10
    _sound(doctor)
    admission.wait(cluster, injected=True)


def test_a_caller_without_rights_is_told_so(cluster, namespace, doctor, tmp_path):
    """Who may do nothing hears what is missing, and what could not be looked at for it."""
    doctor()
    cluster.kubectl("-n", namespace, "create", "serviceaccount", "nobody")
    token = cluster.kubectl("-n", namespace, "create", "token", "nobody").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    path = tmp_path / "nobody.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    api = kubernetes_config.from_environment(kubeconfig=str(path)).api
    found = diagnose(api, namespace, settings=_settings())
    told = _told(found, "rights", "you may not create pytorchjobs, get pytorchjobs")
    assert told
    assert "kubeflow-edit" in told.fix
    unknown = {item.check for item in found.findings if item.verdict == "unknown"}
    assert unknown >= {"nodes", "controller", "webhook", "native-sidecars"}


@pytest.mark.at_length
def test_parts_that_are_stopped_are_found(cluster, doctor, controller_down):
    """An operator and a controller that do not run are found, each with its own way to mend it."""
    seen = _found_and_mended(doctor, _with_no_operator(cluster), "training-operator", "not running")
    assert "--replicas=1" in seen.fix
    controller_down()
    found = eventually(
        lambda: (now := doctor()) and _told(now, "controller", "scaled to 0") and now,
        within=30, what="the controller is gone",
    )  # fmt: skip
    assert _told(found, "webhook", "leads to no pod that is ready")

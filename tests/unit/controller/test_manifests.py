# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The manifests render, fit together and fit the code."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

from controller import settings, webhook_certificate
from rover_kf.api import names
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from rover_kf.webhook import admission

ROOT = pathlib.Path(__file__).parents[3]
MANIFESTS = ROOT / "manifests"


@pytest.fixture(scope="module")
def rendered():
    program = shutil.which("kubectl") or shutil.which("kustomize")
    assert program, "install kubectl: it renders the overlays"
    words = ["kustomize"] if pathlib.Path(program).name == "kubectl" else ["build"]
    done = subprocess.run(
        [program, *words, MANIFESTS / "overlays" / "standalone"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    found = {}
    for document in yaml.safe_load_all(done.stdout):
        found[document["kind"], document["metadata"]["name"]] = document
    return found


def test_everything_is_in_our_namespace(rendered):
    """Every namespaced object, and every reference to one, is in rover-kf-system."""
    for (kind, _), document in rendered.items():
        if kind in ("Namespace", "ClusterRole", "ClusterRoleBinding"):
            assert "namespace" not in document["metadata"]
        elif kind != "MutatingWebhookConfiguration":
            assert document["metadata"]["namespace"] == "rover-kf-system"
        for subject in document.get("subjects", ()):
            assert subject["namespace"] == "rover-kf-system"
        assert document["metadata"]["labels"]["app.kubernetes.io/part-of"] == "rover-kf"


def test_the_namespace_enforces_the_restricted_profile(rendered):
    """Pod security is enforced, not only warned of."""
    labels = rendered["Namespace", "rover-kf-system"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_webhook_is_harmless(rendered):
    """Ignored when it fails, five seconds at most, labelled jobs only, created and updated."""
    configuration = rendered["MutatingWebhookConfiguration", settings.WEBHOOK]
    (hook,) = configuration["webhooks"]
    assert hook["name"] == settings.HOOK
    assert hook["failurePolicy"] == "Ignore"
    assert hook["timeoutSeconds"] <= 5
    assert hook["sideEffects"] == "None"
    assert hook["reinvocationPolicy"] == "IfNeeded"
    assert hook["objectSelector"] == {"matchLabels": {names.INJECT_LABEL: "true"}}
    assert "caBundle" not in hook["clientConfig"]
    (rule,) = hook["rules"]
    assert rule["apiGroups"] == [names.KUBEFLOW_GROUP]
    assert rule["resources"] == [names.PYTORCHJOBS, names.TFJOBS]
    assert rule["operations"] == ["CREATE", "UPDATE"]
    (expression,) = hook["namespaceSelector"]["matchExpressions"]
    assert expression == {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["kube-system"],
    }
    service = hook["clientConfig"]["service"]
    assert service["path"] == admission.PATH
    found = settings.read({"ROVER_NAMESPACE": service["namespace"], "ROVER_SIDECAR_IMAGE": "x"})
    assert f"{service['name']}.{service['namespace']}.svc" in found.webhook_hosts


def test_the_service_reaches_the_controller(rendered):
    """Service, Deployment and probes agree on labels and ports."""
    service = rendered["Service", settings.WEBHOOK]["spec"]
    pod = rendered["Deployment", "rover-kf-controller"]["spec"]["template"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {p["name"]: p["containerPort"] for p in pod["spec"]["containers"][0]["ports"]}
    told = settings.read({"ROVER_NAMESPACE": "n", "ROVER_SIDECAR_IMAGE": "x"})
    assert ports == {"webhook": told.webhook_port, "health": told.health_port}
    assert service["ports"][0]["targetPort"] == "webhook"


def test_the_environment_is_what_the_settings_read(rendered):
    """The pod's variables are enough for the settings, and none is unknown to them."""
    (container,) = rendered["Deployment", "rover-kf-controller"]["spec"]["template"]["spec"][
        "containers"
    ]
    data = rendered["ConfigMap", "rover-kf-controller"]["data"]
    given = {item["name"]: item.get("value", "field") for item in container["env"]} | data
    told = settings.read(given)
    assert told.sidecar_image == data["ROVER_SIDECAR_IMAGE"]
    documented = set(re.findall(r"\bROVER_[A-Z_]+", settings.__doc__))
    assert set(given) - {"MALLOC_ARENA_MAX"} <= documented
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(told.policy_defaults) in mounts
    assert str(told.sidecar_authorities.parent) in mounts
    assert "/var/lib/rover-kf" in mounts
    assert told.history.startswith("sqlite:////var/lib/rover-kf/")


def test_the_controller_may_do_what_it_does_and_no_more(rendered):
    """No wildcard, nothing created but events, our Secret, tokens of the controller's own account
    and questions about a caller's rights, nothing deleted but pods."""
    reviews, told_account = ("tokenreviews", "subjectaccessreviews"), "rover-kf-controller"
    roles = [document for (kind, _), document in rendered.items() if kind.endswith("Role")]
    rules = [rule for role in roles for rule in role["rules"]]
    for rule in rules:
        for values in (rule["apiGroups"], rule["resources"], rule["verbs"]):
            assert "*" not in values
        assert not {"deletecollection", "impersonate", "escalate"} & set(rule["verbs"])
    deleted = {resource for r in rules if "delete" in r["verbs"] for resource in r["resources"]}
    assert deleted == {"pods"}
    created = {resource for r in rules if "create" in r["verbs"] for resource in r["resources"]}
    assert created == {"events", "secrets", "serviceaccounts/token", *reviews}
    named = {n for rule in rules for n in rule.get("resourceNames", ())}
    assert named == {settings.WEBHOOK, told_account}
    (tokens,) = [rule for rule in rules if "serviceaccounts/token" in rule["resources"]]
    assert tokens["resourceNames"] == [told_account]
    assert webhook_certificate.CertificateSecret


def test_the_controller_fits_the_restricted_profile(rendered):
    """Non-root, no capabilities, no escalation, read-only root, default seccomp; one at a time."""
    spec = rendered["Deployment", "rover-kf-controller"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    sources = [
        source
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", ())
    ]
    assert [set(source) for source in sources] == [{"configMap"}], "no token for sidecars lies here"


REPLICAS = {"PyTorchJob": "pytorchReplicaSpecs", "TFJob": "tfReplicaSpecs"}


@pytest.mark.parametrize(
    "sample", sorted((MANIFESTS / "samples").glob("*.yaml")), ids=lambda path: path.stem
)
def test_samples_can_be_injected(sample):
    """Each sample's job is injected without a warning, and its claim is in the same file."""
    documents = list(yaml.safe_load_all(sample.read_text()))
    claims = [d["metadata"]["name"] for d in documents if d["kind"] == "PersistentVolumeClaim"]
    jobs = [document for document in documents if document["kind"] in REPLICAS]
    assert jobs
    for job in jobs:
        assert job["metadata"]["labels"] == {names.INJECT_LABEL: "true"}
        done = inject(job, settings=InjectionSettings("image"), source=sample.name)
        assert done.warnings == ()
        for spec in job["spec"][REPLICAS[job["kind"]]].values():
            for volume in spec["template"]["spec"].get("volumes", ()):
                assert volume["persistentVolumeClaim"]["claimName"] in claims

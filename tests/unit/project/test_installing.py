# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every way to install renders, speaks of its own namespace alone, and the chart is the same."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess

import pytest
import yaml
from testcluster import binaries, settings

ROOT = pathlib.Path(__file__).parents[3]
MANIFESTS = ROOT / "manifests"
CHART = MANIFESTS / "helm"
OVERLAYS = sorted(path.parent.name for path in MANIFESTS.glob("overlays/*/kustomization.yaml"))
COMPONENTS = sorted(path.parent.name for path in MANIFESTS.glob("components/*/kustomization.yaml"))
CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration"}


def rendered(folder):
    """Objects by kind and name; a warning of kustomize is a failure."""
    program = shutil.which("kubectl")
    assert program, "install kubectl: it renders the overlays"
    done = subprocess.run(
        [program, "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return _by_name(done.stdout)


def _by_name(text):
    documents = [one for one in yaml.safe_load_all(text) if one]
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    assert len(found) == len(documents)
    return found


@pytest.fixture
def elsewhere(tmp_path):
    """Render a kustomization over these folders, in a namespace of its own if one is named."""

    def make(*resources, components=(), namespace="elsewhere"):
        copy = tmp_path / "manifests"
        if not copy.exists():
            shutil.copytree(MANIFESTS, copy)
        folder = copy / "mine"
        folder.mkdir(exist_ok=True)
        document = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"../{name}" for name in resources],
            "components": [f"../components/{name}" for name in components],
        }
        if namespace:
            document["namespace"] = namespace
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
        return rendered(folder)

    return make


@pytest.fixture(scope="module")
def helm():
    """Run Helm; returns its standard output."""
    if shutil.which("go") is None:
        reason = "Go is not on PATH: Helm cannot be compiled for the tests of the chart"
        if settings.in_ci():
            pytest.fail(reason)
        pytest.skip(reason)
    program = binaries.compiled(binaries.HELM) / "helm"

    def run(*words, refused=False):
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        assert bool(done.returncode) is refused, done.stdout + done.stderr
        return done.stderr if refused else done.stdout

    return run


def namespaces(value, key=""):
    """Every namespace that an object names, wherever it does."""
    if isinstance(value, dict):
        return {name for key, item in value.items() for name in namespaces(item, key)}
    if isinstance(value, list):
        return {name for item in value for name in namespaces(item, key)}
    return {value} if key == "namespace" else set()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_renders(overlay):
    """Without a warning, all in one namespace, and nothing of the cluster's without its rights."""
    found = rendered(MANIFESTS / "overlays" / overlay)
    named = set().union(*map(namespaces, found.values()))
    assert named == {"kubeflow" if overlay == "kubeflow" else "rover-kf-system"}
    if overlay == "namespaced":
        assert not {kind for kind, _ in found} & CLUSTER_WIDE
    for document in found.values():
        assert document["metadata"]["labels"]["app.kubernetes.io/part-of"] == "rover-kf"
    print(f"{overlay}: {len(found)} objects in {named}")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_goes_elsewhere(elsewhere, overlay):
    """A kustomization that names another namespace moves every mention of one: subjects of
    bindings, the webhook's service, the namespace itself."""
    with_rights = [] if overlay == "namespaced" else ["cordon", "delete-lost"]
    found = elsewhere(f"overlays/{overlay}", components=with_rights)
    assert "rover-kf-system" not in json.dumps(list(found.values()))
    assert set().union(*map(namespaces, found.values())) == {"elsewhere"}
    if overlay == "standalone":
        assert ("Namespace", "elsewhere") in found


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_renders(elsewhere, component):
    """Over the standalone overlay it adds or changes something; what it adds is in the namespace
    and has our labels without being told."""
    plain = elsewhere("overlays/standalone", namespace="")
    with_it = elsewhere("overlays/standalone", components=[component], namespace="")
    assert plain.keys() <= with_it.keys()
    assert plain != with_it
    for (kind, _), document in with_it.items():
        metadata = document["metadata"]
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "rover-kf"
        assert ("namespace" in metadata) is (kind not in CLUSTER_WIDE)


def test_lost_jobs_of_each_kind_may_be_deleted(elsewhere):
    """The component gives the right for whatever kinds the controller looks after."""
    roles = elsewhere("overlays/standalone", components=["delete-lost"])
    (jobs, *_) = roles["ClusterRole", "rover-kf-controller"]["rules"]
    (lost,) = roles["ClusterRole", "rover-kf-controller-delete-lost"]["rules"]
    assert (lost["apiGroups"], lost["resources"]) == (jobs["apiGroups"], jobs["resources"])
    assert "patch" in jobs["verbs"]
    assert lost["verbs"] == ["delete"]


COUNTERPARTS = {
    "standalone": ("overlays/standalone", [], "rover-kf-system", {}),
    "kubeflow": (
        "overlays/kubeflow",
        [],
        "kubeflow",
        {"kubeflowRoles": True, "networkPolicies": True},
    ),
    "namespaced": ("overlays/namespaced", [], "rover-kf-system", {"namespaced": True}),
    "everything": (
        "overlays/standalone",
        ["cordon", "delete-lost", "history-claim", "network-policies"],
        "rover-kf-system",
        {
            "cordon": True,
            "deleteLost": True,
            "networkPolicies": True,
            "historyClaim": {"enabled": True},
        },
    ),
}


@pytest.mark.parametrize("case", COUNTERPARTS)
def test_the_chart_is_what_kustomize_renders(helm, elsewhere, tmp_path, case):
    """Object by object and field by field; the Namespace alone is Helm's own to make."""
    resource, components, namespace, values = COUNTERPARTS[case]
    wanted = {
        key: _sorted(document)
        for key, document in elsewhere(resource, components=components, namespace="").items()
        if key[0] != "Namespace"
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    given = ("--namespace", namespace, "--values", tmp_path / "values.yaml")
    helm("lint", "--strict", CHART, *given)
    made = _by_name(helm("template", "rover-kf", CHART, *given))
    assert {key: _sorted(document) for key, document in made.items()} == wanted
    print(f"{case}: {len(made)} objects alike")


def _sorted(value, key=""):
    """The same without what is empty, and with lists of named things in one order."""
    if isinstance(value, dict):
        return {key: _sorted(item, key) for key, item in value.items() if item not in ({}, None)}
    if isinstance(value, list):
        items = [_sorted(item) for item in value]
        named = key in ("env", "volumes")
        return sorted(items, key=lambda item: item["name"]) if named else items
    return value


def test_the_chart_goes_elsewhere(helm):
    """No mention of our usual namespace is left where the release is in another."""
    values = ("--set", "cordon=true,deleteLost=true,networkPolicies=true,kubeflowRoles=true")
    made = _by_name(helm("template", "x", CHART, "--namespace", "elsewhere", *values))
    assert "rover-kf-system" not in json.dumps(list(made.values()))
    assert set().union(*map(namespaces, made.values())) == {"elsewhere"}


def test_the_charts_values_are_taken(helm, tmp_path):
    """Images, further variables and policy reach the controller as text."""
    values = {
        "images": {"controller": "r/c:2", "sidecar": "r/s:2", "pullSecrets": ["key"]},
        "settings": {"ROVER_HISTORY_DAYS": 30, "ROVER_LOG_LEVEL": "DEBUG"},
        "policyDefaults": {"checkpoint.every": 100},
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    made = _by_name(helm("template", "x", CHART, "-n", "n", "-f", tmp_path / "values.yaml"))
    data = made["ConfigMap", "rover-kf-controller"]["data"]
    assert (data["ROVER_SIDECAR_IMAGE"], data["ROVER_HISTORY_DAYS"]) == ("r/s:2", "30")
    assert data["ROVER_LOG_LEVEL"] == "DEBUG"
    assert made["ConfigMap", "rover-kf-policy-defaults"]["data"] == {"checkpoint.every": "100"}
    pod = made["Deployment", "rover-kf-controller"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "r/c:2"
    assert pod["imagePullSecrets"] == [{"name": "key"}]


def test_rights_of_the_cluster_are_refused_in_one_namespace(helm):
    """A release without cluster rights says which values ask for some."""
    told = helm("template", "x", CHART, "--set", "namespaced=true,cordon=true", refused=True)
    assert "cordon, deleteLost and kubeflowRoles are ClusterRoles" in told


def test_an_old_cluster_is_refused(helm):
    """Kubernetes before 1.29 has no native sidecars."""
    told = helm("template", "x", CHART, "--kube-version", "1.28.3", refused=True)
    assert "kubeVersion: >=1.29.0-0" in told

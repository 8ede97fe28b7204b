# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""manifests/integrations, patched by `rover-kf patch`: what docs/integrations.md says of them."""

from __future__ import annotations

import copy
import pathlib
import re

import pytest
import yaml

from rover_kf.api import names
from rover_kf.cli import main
from rover_kf.injection import node_affinity
from rover_kf.system import tls

ROOT = pathlib.Path(__file__).parents[3]
FOLDER = ROOT / "manifests" / "integrations"
PORTS = "traffic.sidecar.istio.io/exclude{}boundPorts"


def _read(name):
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


@pytest.fixture
def patched(capsys):
    """The command's output for a file, as the document that it is."""

    def run(path):
        with pytest.raises(SystemExit) as end:
            main(["patch", str(path)])
        told = capsys.readouterr()
        assert end.value.code == 0, told.err
        (job,) = (one for one in yaml.safe_load_all(told.out) if one["kind"] == "PyTorchJob")
        return job

    return run


def _template(job):
    return job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]


def _trainer(job):
    (found,) = (c for c in _template(job)["spec"]["containers"] if c["name"] == "pytorch")
    return found


def _sidecar(job):
    found = _template(job)["spec"]["initContainers"]
    return next(one for one in found if one["name"] == names.SIDECAR_CONTAINER)


def test_every_manifest_is_tested_and_documented():
    """Each file is named by a test here and by the page."""
    page = (ROOT / "docs" / "integrations.md").read_text()
    source = pathlib.Path(__file__).read_text()
    for path in FOLDER.glob("*.yaml"):
        assert f"integrations/{path.name}" in page
        assert f'"{path.stem}' in source


def test_in_a_mesh_only_the_sidecars_port_is_left_out(patched):
    """Ports that were left out already stay so; the pods are not taken out of the mesh."""
    found = _template(patched(FOLDER / "istio.yaml"))["metadata"]["annotations"]
    assert _template(_read("istio"))["metadata"]["annotations"] == {PORTS.format("Out"): "29500"}
    assert found == {
        PORTS.format("Out"): f"29500,{names.PORT}",
        PORTS.format("In"): str(names.PORT),
    }


def test_a_generated_name_stays_one(patched):
    """The job gets no name of ours, and its sidecar reads the real one from the pod's label."""
    job = patched(FOLDER / "generate-name.yaml")
    assert job["metadata"]["generateName"] == _read("generate-name")["metadata"]["generateName"]
    assert "name" not in job["metadata"]
    (told,) = (one for one in _sidecar(job)["env"] if one["name"] == names.ENV_JOB)
    path = told["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == f"metadata.labels['{names.JOB_NAME_LABEL}']"


def test_a_registrys_login_serves_the_sidecar_too(patched, monkeypatch):
    """The pods' Secret is kept, and the sidecar's image is of the registry that was told."""
    image = "registry.example.com/rover-kf-sidecar:0.1.0"
    monkeypatch.setenv("ROVER_SIDECAR_IMAGE", image)
    job = patched(FOLDER / "private-registry.yaml")
    assert _template(job)["spec"]["imagePullSecrets"] == [{"name": "registry-login"}]
    assert _sidecar(job)["image"] == image


def test_what_cert_manager_writes_is_what_a_job_mounts(patched):
    """The names fit each other: of Secret, authority, ConfigMap and the namespace's sidecars."""
    found = yaml.safe_load_all((FOLDER / "cert-manager.yaml").read_text())
    kinds = {(one["kind"], one["metadata"]["name"]): one for one in found}
    bundle = kinds["Bundle", "rover-kf-sidecar-ca"]
    (source,) = bundle["spec"]["sources"]
    authority = kinds["Certificate", "rover-kf-ca"]["spec"]
    issuer = kinds["ClusterIssuer", "rover-kf"]["spec"]["ca"]
    assert source["secret"]["name"] == authority["secretName"] == issuer["secretName"]
    leaf = kinds["Certificate", "rover-kf-sidecars"]
    namespace = leaf["metadata"]["namespace"]
    assert leaf["spec"]["dnsNames"] == [tls.server_name(namespace)]
    job = patched(FOLDER / "cert-manager.yaml")
    assert job["metadata"]["namespace"] == namespace
    (volume,) = (
        one for one in _template(job)["spec"]["volumes"] if one["name"] == names.TLS_VOLUME
    )
    mounted = {
        (kind, part["name"], item["key"])
        for source in volume["projected"]["sources"]
        for kind, part in source.items()
        for item in part["items"]
    }
    key = bundle["spec"]["target"]["configMap"]["key"]
    assert ("configMap", bundle["metadata"]["name"], key) in mounted
    assert ("secret", leaf["spec"]["secretName"], "tls.key") in mounted
    deployment = (ROOT / "manifests/base/controller/deployment.yaml").read_text()
    (told,) = (
        part["configMap"]
        for one in yaml.safe_load(deployment)["spec"]["template"]["spec"]["volumes"]
        for part in (one.get("projected") or {}).get("sources", ())
        if "configMap" in part
    )
    assert (told["name"], told["optional"]) == (bundle["metadata"]["name"], True)
    assert told["items"] == [{"key": key, "path": names.CONTROLLER_AUTHORITIES}]


def test_a_trial_is_patched_as_katib_would_create_it(patched, tmp_path):
    """Katib puts name and parameters in; the container that it watches stays the trainer."""
    template = _read("katib")["spec"]["trialTemplate"]
    trial = yaml.safe_dump(template["trialSpec"])
    for parameter in template["trialParameters"]:
        trial = trial.replace(f"${{trialParameters.{parameter['name']}}}", "0.002")
    whole = yaml.safe_load(trial)
    whole["metadata"] |= {"name": "digits-search-7x2k", "namespace": "team"}
    path = tmp_path / "trial.yaml"
    path.write_text(yaml.safe_dump(whole))
    job = patched(path)
    assert template["primaryContainerName"] == _trainer(job)["name"]
    words = [*_trainer(job)["command"], *_trainer(job).get("args", ())]
    assert words[-1] == "--learning-rate=0.002"
    labels = template["primaryPodLabels"]
    assert labels == {names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "0"}


def test_git_and_a_job_that_trains_differ_in_what_argo_ignores(patched):
    """All that changes on a job while it trains is named, and nothing else is."""
    application = _read("argocd")["spec"]
    (rule,) = application["ignoreDifferences"]
    assert "RespectIgnoreDifferences=true" in application["syncPolicy"]["syncOptions"]
    assert (rule["group"], rule["kind"]) == (names.KUBEFLOW_GROUP, names.PYTORCHJOB)
    in_git = patched(ROOT / "manifests" / "samples" / "char-gpt.yaml")
    changed = _differences(in_git, _after_hours(in_git))
    ignored = [_pattern(path) for path in rule["jqPathExpressions"]]
    used = {
        next((one.pattern for one in ignored if one.match(path)), f"not ignored: {path}")
        for path in changed
    }
    assert used == {one.pattern for one in ignored}


def _after_hours(job):
    """As it stands in the cluster: scaled, with more memory, kept from a node, and paused."""
    live = copy.deepcopy(job)
    worker = live["spec"]["pytorchReplicaSpecs"]["Worker"]
    worker["replicas"] += 1
    _trainer(live)["resources"] = {"limits": {"memory": "7Gi"}, "requests": {"memory": "7Gi"}}
    pod = worker["template"]["spec"]
    pod.update(node_affinity.exclude_nodes(pod, {"node-1"}))
    live["spec"].setdefault("runPolicy", {})["suspend"] = True
    return live


def _differences(one, other, path=""):
    """Places where two documents differ, as ``.spec.containers[0].image``."""
    if isinstance(one, dict) and isinstance(other, dict):
        return [
            place
            for key in {*one, *other}
            for place in _differences(one.get(key), other.get(key), f"{path}.{key}")
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [place for n, (a, b) in pairs for place in _differences(a, b, f"{path}[{n}]")]
    return [] if one == other else [path]


def _pattern(expression):
    """What a jq path of names and ``[]`` matches: that place and all below it."""
    names_and_all = re.escape(expression).replace(r"\[\]", r"(\.\w+|\[\d+\])")
    return re.compile(rf"{names_and_all}(\.|\[|$)")

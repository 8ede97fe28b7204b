# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The pipeline components, run by kfp on this machine against the embedded cluster."""

from __future__ import annotations

import json
import pathlib
import warnings

import pytest
import yaml

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # kfp's own, on import
    from kfp import compiler, local

    from components import compile as compiling
    from components.launch_training_job.component import launch_training_job
    from components.patch_manifest.component import patch_manifest
    from components.pipelines.train import train
    from components.recommend_resources.component import recommend_resources

from rover_kf.api import names
from rover_kf.client import RoverClient

pytestmark = pytest.mark.filterwarnings("ignore")  # kfp.local warns of what it does not emulate


@pytest.fixture(autouse=True)
def runner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(tmp_path / "outputs"),
        workspace_root=str(tmp_path / "workspace"),
        raise_on_error=True,
    )


@pytest.fixture
def manifest(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('a step of a pipeline trained')\n")
    container = {
        "name": "pytorch",
        "image": "any",
        "command": ["python", str(script)],
        "resources": {"limits": {"memory": "256Mi", "cpu": "1"}},
    }
    return yaml.safe_dump(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "step", "labels": {names.INJECT_LABEL: "true"}},
            "spec": {
                "elasticPolicy": {"minReplicas": 1, "maxReplicas": 2},
                "pytorchReplicaSpecs": {
                    "Worker": {
                        "replicas": 1,
                        "restartPolicy": "ExitCode",
                        "template": {"spec": {"containers": [container]}},
                    }
                },
            },
        }
    )


@pytest.mark.parametrize("path", sorted(compiling.targets()), ids=lambda path: path.parent.name)
def test_compiled_files_are_what_compiling_gives(path, tmp_path):
    """Each compiled file is up to date; ``python -m components.compile`` writes them."""
    again = tmp_path / "again.yaml"
    compiler.Compiler().compile(compiling.targets()[path], str(again))
    assert _versionless(path) == _versionless(again)


def _versionless(path):
    documents = list(yaml.safe_load_all(path.read_text()))
    documents[0].pop("sdkVersion")  # of whoever compiled it
    return documents


@pytest.mark.parametrize("folder", ["recommend_resources", "patch_manifest", "launch_training_job"])
def test_a_component_is_described(folder):
    """Each component has metadata and a page that names all its inputs and outputs."""
    home = pathlib.Path(compiling.HERE) / folder
    metadata = yaml.safe_load((home / "metadata.yaml").read_text())
    assert metadata["name"] == folder
    assert metadata["stability"] in ("experimental", "alpha", "beta", "stable")
    page = (home / "README.md").read_text()
    described = yaml.safe_load((home / "component.yaml").read_text())
    interface = described["root"]
    for part in ("inputDefinitions", "outputDefinitions"):
        for kind in interface.get(part, {}).values():
            for name in kind:
                assert f"`{name}`" in page


def test_recommend_says_sizes_and_shows_them(manifest, tmp_path):
    """The component gives the sizes as JSON and as a table."""
    task = recommend_resources(manifest=manifest, place="embedded", state=str(tmp_path / "state"))
    sizes = json.loads(task.outputs["Output"])
    assert {"replicas", "memory"} <= {item["name"] for item in sizes["quantities"]}
    assert json.loads(pathlib.Path(task.outputs["sizes"].path).read_text()) == sizes
    assert "| replicas |" in pathlib.Path(task.outputs["summary"].path).read_text()


def test_a_bad_manifest_fails_the_step(tmp_path):
    """What cannot be used ends the step with an error."""
    with pytest.raises(RuntimeError, match="recommend-resources"):
        recommend_resources(
            manifest="kind: Deployment\nmetadata: {name: a}\n",
            place="embedded",
            state=str(tmp_path / "state"),
        )


def test_patch_keeps_whole_numbers_whole(manifest):
    """Manifests travel as texts, so replicas stay whole numbers; learned ones are taken over."""
    size = {
        "name": "replicas",
        "target": 2.0,
        "lower": 1.0,
        "upper": 2.0,
        "unit": "replicas",
        "basis": "history",
        "effective_samples": 3.0,
        "why": "because",
    }
    learned = json.dumps({"job": "step", "quantities": [size]})
    task = patch_manifest(manifest=manifest, recommendation=learned, place="embedded")
    patched = yaml.safe_load(task.outputs["Output"])
    assert names.INJECTED_ANNOTATION in patched["metadata"]["annotations"]
    replicas = patched["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
    assert (replicas, type(replicas)) == (2, int)


def test_a_failed_job_fails_the_step(manifest, tmp_path):
    """The launching step fails with its job."""
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(RuntimeError, match="launch-training-job"):
        launch_training_job(manifest=manifest, place="embedded", state=str(tmp_path / "state"))


@pytest.mark.torch
def test_the_pipeline_trains(manifest, tmp_path):
    """Recommend, patch and launch run one after another; the run is recorded and reported."""
    state = tmp_path / "state"
    run = train(manifest=manifest, place="embedded", state=str(state), timeout_seconds=240.0)
    assert run.outputs["Output"] == "step"
    with RoverClient.at("embedded", state=str(state)) as rover:
        assert "a step of a pipeline trained" in rover.logs("step")
        record = rover.record("step")
    assert record.outcome == "succeeded"
    (report,) = (tmp_path / "outputs").rglob("report")
    assert "<html" in report.read_text()

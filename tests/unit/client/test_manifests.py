# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Reading jobs from files, texts and mappings."""

from __future__ import annotations

import json

import pytest
import yaml

from rover_kf import errors
from rover_kf.api.decisions import Quantity, Recommendation
from rover_kf.client import manifests
from tests.support.jobs.job_manifests import make_job, trainer_of

JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "one", "namespace": "team"},
    "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2}}},
}
CLAIM = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c"}}


def test_a_file_keeps_its_other_documents_in_order(tmp_path):
    """The job is found among other documents; written back, all stand where they stood."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump_all([CLAIM, JOB, CLAIM]))
    source = manifests.load(file)
    assert source.job == JOB
    assert source.folder == tmp_path
    assert source.name == str(file)
    changed = source.with_job({**JOB, "metadata": {"name": "two"}})
    written = list(yaml.safe_load_all(changed.to_yaml()))
    assert written == [CLAIM, {**JOB, "metadata": {"name": "two"}}, CLAIM]
    assert str(source.key) == "PyTorchJob team/one"


@pytest.mark.parametrize("form", [yaml.safe_dump, json.dumps, lambda job: job])
def test_a_text_and_a_mapping_are_read_too(form):
    """YAML text, JSON text and a mapping give the same job."""
    assert manifests.load(form(JOB)).job == JOB


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (yaml.safe_dump(CLAIM) + "\n", "kind is 'PersistentVolumeClaim'.*PyTorchJob"),
        (yaml.safe_dump_all([JOB, JOB]), "exactly one"),
        ("a: [\n", "not YAML"),
        ("kind: PyTorchJob\nmetadata: {}\n", "metadata.name"),
        ("- 1\n- 2\n", "kind is None"),
        ("kind: PyTorchJob\n", "metadata.name is None"),
    ],
)
def test_what_holds_no_job_is_refused(tmp_path, text, match):
    """The file is named, with the key, the value and what is allowed."""
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(errors.InputError, match=match) as caught:
        manifests.load(file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named():
    """A path that cannot be read is bad input, not a traceback."""
    with pytest.raises(errors.InputError, match=r"nowhere\.yaml cannot be read"):
        manifests.load("nowhere.yaml")


@pytest.mark.parametrize(("basis", "replicas"), [("history", 4), ("manifest", 2)])
def test_only_what_runs_have_shown_changes_replicas(basis, replicas):
    """Replicas learned from runs are taken over; a manifest's own number stays."""
    size = Quantity("replicas", 3.9, 3, 5, "replicas", basis, 2.0, "because")
    sized = manifests.apply_sizes(manifests.load(JOB), Recommendation("one", (size,)))
    assert sized.job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == replicas
    assert JOB["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2


@pytest.mark.parametrize(
    ("stated", "most", "limit"),
    [("1Gi", None, "3Gi"), ("1Gi", 2 << 30, "2Gi"), ("4Gi", None, "4Gi")],
)
def test_memory_is_only_raised(stated, most, limit):
    """To what runs have shown, as far as is allowed; a request that equals the limit follows."""
    job = make_job(memory=stated)
    trainer_of(job)["resources"]["requests"] = {"memory": stated}
    size = Quantity("memory", 3.0 * 2**30, 1, 5, "bytes", "history", 2.0, "because")
    fed = manifests.apply_learned_memory(
        manifests.load(job), Recommendation("one", (size,)), max_limit=most
    )
    assert trainer_of(fed.job)["resources"] == {
        "limits": {"memory": limit},
        "requests": {"memory": limit},
    }

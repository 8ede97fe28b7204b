# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""manifests/integrations, patched, are what the real API server and Training Operator take."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml
from testcluster import settings

from rover_kf.api import names

FOLDER = settings.REPOSITORY / "manifests" / "integrations"
JOBS = ("istio", "generate-name", "private-registry")


@pytest.mark.parametrize("name", JOBS)
def test_a_patched_manifest_is_taken(cluster, namespace, name):
    """A dry run of the server's, with the operator's own webhook; nothing is created."""
    words = [sys.executable, "-m", "rover_kf.cli", "patch", str(FOLDER / f"{name}.yaml")]
    text = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
    job = yaml.safe_load(text)
    job["metadata"]["namespace"] = namespace
    # Unlabelled, our own webhook stays out of it: what counts is what `patch` wrote.
    del job["metadata"]["labels"][names.INJECT_LABEL]
    stored = json.loads(
        cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=json.dumps(job))
    )
    assert stored["metadata"]["name"].startswith(job["metadata"].get("generateName", "digits-"))
    assert _holds(stored["spec"], job["spec"])


def _holds(stored, sent):
    """Whether all that was sent is there; what the server adds does not count."""
    if isinstance(sent, dict) and isinstance(stored, dict):
        return all(key in stored and _holds(stored[key], value) for key, value in sent.items())
    if isinstance(sent, list) and isinstance(stored, list):
        return len(sent) == len(stored) and all(map(_holds, stored, sent))
    return stored == sent


def test_a_trial_is_taken_as_katib_would_create_it(cluster, namespace):
    """The trial's template with its parameter put in, by the webhook or without it."""
    template = yaml.safe_load((FOLDER / "katib.yaml").read_text())["spec"]["trialTemplate"]
    text = json.dumps(template["trialSpec"])
    for parameter in template["trialParameters"]:
        text = text.replace(f"${{trialParameters.{parameter['name']}}}", "0.002")
    job = json.loads(text)
    job["metadata"] |= {"name": "digits-search-7x2k", "namespace": namespace}
    stored = json.loads(
        cluster.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=json.dumps(job))
    )
    worker = stored["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    (trainer,) = (one for one in worker["containers"] if one["name"] == "pytorch")
    words = [*trainer["command"], *trainer.get("args", ())]
    assert words[-1] == "--learning-rate=0.002"

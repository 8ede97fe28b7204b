# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""notebooks/02_cluster.ipynb on a real cluster, from top to bottom."""

from __future__ import annotations

import pytest
import yaml
from testcluster import jobs

from tests.support.notebook_run import FOLDER, NotebookRun

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.at_length,
    pytest.mark.filterwarnings("ignore"),  # of the kernel's transport, not of ours
]


@pytest.fixture
def kernel(cluster, tmp_path, monkeypatch):
    """The notebook's kernel finds the cluster, and keeps its files here."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setenv("ROVER_KF_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")


@pytest.fixture
def manifest(namespace, with_trainer, shared_claim, tmp_path):
    """The digits job, with what a trainer needs on this cluster."""
    shared_claim(jobs.CLAIM)
    job = jobs.digits(namespace, "--steps", "150", traced=False)
    job = with_trainer(job, scripts=jobs.SAMPLES, tools=jobs.TOOLS)
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


@pytest.mark.usefixtures("controller", "kernel")
def test_the_notebook_of_the_cluster(namespace, manifest):
    """Nothing is found broken, the job is followed to its end, its words and story are shown."""
    values = {"namespace": namespace, "manifest_file": manifest}
    run = NotebookRun(FOLDER / "02_cluster.ipynb", values, timeout=800)
    assert "0 broken" in run.text
    (followed,) = run.progress
    assert "value='150'" in followed
    assert "Succeeded" in followed
    assert "digits-worker-0" in run.text
    assert "'steps': 150" in run.text
    assert "Injected" in run.text
    assert run.shown("image/png")

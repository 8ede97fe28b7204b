# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every notebook runs from top to bottom, and shows what it is there to show.

That of the cluster wants one: tests/cluster/test_notebook.py.
"""

from __future__ import annotations

import re

import nbformat
import pytest

from tests.support.notebook_run import FOLDER, NOTEBOOKS, NotebookRun

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # of the kernel's transport, not of ours
]


@pytest.fixture(autouse=True)
def kernel(tmp_path, monkeypatch):
    """A kernel that keeps its files here and draws into the notebook."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    """Kept outputs go stale; each notebook tells a story, and has a plot."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    assert notebook.cells[0].cell_type == "markdown"
    assert "plt.show()" in "".join(cell.source for cell in notebook.cells)


def test_every_notebook_is_run():
    """Each but that of the cluster is named by a test."""
    here = {name for name in globals() if name.startswith("test_n")}
    run_here = {path.stem for path in NOTEBOOKS if f"test_n{path.stem}" in here}
    assert {path.stem for path in NOTEBOOKS} - run_here == {"02_cluster"}


def test_n01_quickstart():
    """The job is followed in place to its end, its run is recorded and its report written."""
    run = NotebookRun(FOLDER / "01_quickstart.ipynb")
    (followed,) = run.progress
    assert "value='150'" in followed
    assert "Succeeded" in followed
    assert "('report.html', 'succeeded')" in run.text
    assert run.shown("image/png")


def test_n03_checkpoints():
    """A killed process goes on from memory, a deleted job from storage."""
    run = NotebookRun(FOLDER / "03_checkpoints.ipynb")
    resumed = re.search(r"resumes at step (\d+) from memory", run.text)
    assert resumed
    assert int(resumed[1]) >= 60
    again = re.search(r"went on after step (\d+) from (\w+)", run.text)
    assert again
    assert int(again[1]) >= 120
    assert again[2] == "storage"
    assert "after 240 steps" in run.text
    assert run.shown("image/png")


@pytest.mark.at_length
def test_n04_recommendation():
    """Sizes come from the manifest, then from a dry run, then from a run; the cost is told."""
    run = NotebookRun(FOLDER / "04_recommendation.ipynb")
    assert "['manifest', 'profile', 'history']" in run.text
    assert re.search(r"0\.\d+ EUR an hour: 2 pods", run.text)
    assert run.shown("image/png")


@pytest.mark.at_length
def test_n05_autoscaling():
    """The simulated policy comes near the oracle; each decision on the real job has its reason."""
    run = NotebookRun(FOLDER / "05_autoscaling.ipynb")
    found = dict(re.findall(r"(\w+) +cost over the oracle's ([\d.]+)", run.text))
    assert float(found["rover"]) < 1.1 < float(found["hpa"])
    assert re.search(r"stay at 1|1 to 2", run.text)
    assert len(run.shown("image/png")) == 3


@pytest.mark.timeout(400)
@pytest.mark.at_length
def test_n06_kafka(kafka):
    """Of a real broker's records none is lost and none counts twice, though a process is killed."""
    values = {"brokers": kafka.address, "topic": "clicks"}
    run = NotebookRun(FOLDER / "06_kafka.ipynb", values)
    assert "3000 records, 0 lost, 0 counted twice" in run.text
    assert "3000 of 3000 committed" in run.text
    assert "('Succeeded', 1)" in run.text
    assert run.shown("image/png")


@pytest.mark.timeout(600)
@pytest.mark.at_length
def test_n07_pipeline():
    """Every step of the pipeline leaves its artifacts, and the run is recorded."""
    run = NotebookRun(FOLDER / "07_pipeline.ipynb", timeout=540)
    for step in ("recommend-resources", "patch-manifest", "launch-training-job", "training-report"):
        assert step in run.text
    assert "succeeded" in run.text
    assert run.shown("image/png")

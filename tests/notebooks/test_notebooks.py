# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Every notebook runs from top to bottom."""

from __future__ import annotations

import pathlib
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the notebook libraries' own, on import
    import nbclient
    import nbformat

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # of the kernel's transport, not of ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    """All cells run; the job trains to its end and its run is recorded."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "kept outputs go stale"
    client = nbclient.NotebookClient(
        notebook, timeout=240, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = " ".join(str(output.get("data", {}).get("text/plain", "")) for output in outputs)
    assert "'succeeded'" in shown
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_there_are_notebooks():
    """The parametrised test above has something to run."""
    assert NOTEBOOKS

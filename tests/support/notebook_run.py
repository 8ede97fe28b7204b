# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A notebook run from top to bottom in a kernel of its own, and what it showed."""

from __future__ import annotations

import pathlib
import re
import warnings
from collections.abc import Mapping

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the notebook libraries' own, on import
    import nbclient
    import nbformat

FOLDER = pathlib.Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


class NotebookRun:
    """Executes a notebook.

    Args:
        path: of the notebook.
        values: of the variables of its cell with the tag ``parameters``; that cell's own otherwise.
        timeout: seconds for one cell.

    Raises:
        CellExecutionError: a cell failed; with its traceback.
    """

    def __init__(
        self, path: pathlib.Path, values: Mapping[str, object] | None = None, timeout: int = 240
    ) -> None:
        self._notebook = nbformat.read(path, as_version=4)
        if values:
            self._set(values)
        resources = {"metadata": {"path": str(path.parent)}}
        client = nbclient.NotebookClient(
            self._notebook, timeout=timeout, startup_timeout=240, resources=resources
        )
        client.execute()

    def _set(self, values: Mapping[str, object]) -> None:
        cells = self._notebook.cells
        tagged = [
            n for n, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", ())
        ]
        (place,) = tagged
        lines = [f"{name} = {_source(value)}" for name, value in values.items()]
        cells.insert(place + 1, nbformat.v4.new_code_cell("\n".join(["import pathlib", *lines])))

    @property
    def outputs(self) -> list[Mapping[str, object]]:
        """Of all cells, in their order."""
        return [one for cell in self._notebook.cells for one in cell.get("outputs", ())]

    def shown(self, kind: str) -> list[str]:
        """What was shown as that type of data, such as ``text/html``."""
        return [str(one["data"][kind]) for one in self.outputs if kind in one.get("data", {})]

    @property
    def text(self) -> str:
        """All that a reader reads: printed, as plain text, and as HTML without its tags."""
        printed = [str(one["text"]) for one in self.outputs if "text" in one]
        tables = [re.sub(r"<[^>]+>", " ", page) for page in self.shown("text/html")]
        return "\n".join([*printed, *self.shown("text/plain"), *tables])

    @property
    def progress(self) -> list[str]:
        """What stands at the end where a job was followed in place."""
        return [page for page in self.shown("text/html") if page.startswith("<progress")]


def _source(value: object) -> str:
    if isinstance(value, pathlib.Path):
        return f"pathlib.Path({str(value)!r})"
    return repr(value)

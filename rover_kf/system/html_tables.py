# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Values that show themselves in a notebook, as a table; nothing but the standard library."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_CELL = "text-align:left;padding:2px 12px 2px 0;vertical-align:top"


class NotebookTable:
    """A value of which a notebook shows a table."""

    __slots__ = ()

    def _html_title(self) -> str:
        raise NotImplementedError

    def _html_rows(self) -> Iterable[Sequence[object]]:
        """Each row's cells."""
        raise NotImplementedError

    def _html_header(self) -> Sequence[str]:
        """Names of the columns; none: each row begins with its own."""
        return ()

    def _repr_html_(self) -> str:
        return html_table(self._html_title(), self._html_header(), self._html_rows())


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as HTML; every text in it is escaped.

    Args:
        title: above it.
        header: names of the columns; without them the first cell of a row is its name.
        rows: cells.
    """
    parts = [f"<table><caption style='text-align:left'>{html.escape(title)}</caption>"]
    if header:
        cells = "".join(
            f"<th scope='col' style='{_CELL}'>{html.escape(name)}</th>" for name in header
        )
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    parts.append("<tbody>")
    parts += [_row(row, named=not header) for row in rows]
    return "".join([*parts, "</tbody></table>"])


def _row(row: Sequence[object], *, named: bool) -> str:
    cells = [
        _cell(value, "th scope='row'" if named and not place else "td")
        for place, value in enumerate(row)
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(value: object, tag: str) -> str:
    text = "-" if value is None else html.escape(str(value))
    return f"<{tag} style='{_CELL}'>{text}</{tag[:2]}>"

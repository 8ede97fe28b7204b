# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever a run was, the history gives it back."""

from __future__ import annotations

import pathlib
import tempfile

from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf.api import codec, records
from rover_kf.history.store import SqlHistory

# Surrogates are no UTF-8 and cannot come over JSON; NUL is refused by PostgreSQL's text.
words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=40)
st.register_type_strategy(str, words)
st.register_type_strategy(int, st.integers(codec.MIN_INTEGER, codec.MAX_INTEGER))
st.register_type_strategy(float, st.floats(-1e12, 1e12, allow_nan=False))
made = st.builds(records.RunRecord)


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(made, max_size=5, unique_by=lambda record: record.uid))
def test_records_come_back_equal(rows):
    """Any records, any text and numbers: written, read back, equal, and counted."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "history.db"
        with SqlHistory(f"sqlite:///{path}") as history:
            for record in rows:
                history.upsert(record)
                history.upsert(record)
            assert {item.uid: item for item in history.list()} == {r.uid: r for r in rows}
            for record in rows:
                assert history.get(record.uid) == record

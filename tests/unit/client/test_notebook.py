# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Results show themselves in a notebook, and nothing of what a job says is taken for HTML."""

from __future__ import annotations

import html.parser

import pytest
import sound_cluster

from rover_kf.api.decisions import Quantity, Recommendation
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.client.listings import Events, Jobs
from rover_kf.client.progress import progress_of
from rover_kf.doctor.examination import Diagnosis, judge

EVIL = "<script>alert('x')</script>"


class _Reader(html.parser.HTMLParser):
    """Texts of the cells, and whether every tag that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        assert attrs is not None
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += f"{data}|"


def _job():
    annotations = {"rover-kf.io/checkpoint.every": "20", "rover-kf.io/injected": "abc"}
    manifest = {"metadata": {"name": "fit", "annotations": annotations}}
    key = JobKey("team", EVIL)
    return ObservedJob(key, "uid", "1", manifest, {"worker": 3}, "Running", created_at=1e9)


def _recommendation():
    quantity = Quantity("memory", 2**31, 2**30, 2**32, "bytes", "history", 3.0, EVIL)
    return Recommendation("fit", (quantity,))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (_job(), ("Running", "3 worker", "checkpoint.every")),
        (_recommendation(), ("memory", "history")),
        (progress_of(_job(), (), None), ("Running", "0 of 3 run")),
        (Jobs([_job()]), ("1 jobs", "Running", "2001-09-09")),
        (Events([Event("Scaled", EVIL, warning=True, at=1e9)]), ("1 events", "Scaled", "!")),
        (Diagnosis("team", tuple(judge(sound_cluster.facts()))), ("0 broken", "native-sidecars")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_is_a_table(value, words):
    """It is whole HTML, holds what the value says, and nothing in it runs."""
    reader = _Reader()
    reader.feed(value._repr_html_())
    assert reader.open == []
    assert reader.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    for word in words:
        assert word in reader.text
    assert "rover-kf.io/injected" not in reader.text

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Results show themselves in a notebook, and nothing of what a job says is taken for HTML."""

from __future__ import annotations

import dataclasses
import html.parser

import pytest

from rover_kf.api.decisions import Cost, Quantity, Recommendation, ScaleDecision
from rover_kf.api.jobs import Event, JobKey, ObservedJob
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.client.explain import DecisionOutcome, Explanation
from rover_kf.client.job_progress import make_progress
from rover_kf.client.patches import SuspendResult
from rover_kf.client.results import SHOWN_BYTES, ReportFile
from rover_kf.client.views import EventList, JobHistory, JobList, LogView
from rover_kf.doctor.diagnose import Diagnosis, check_facts
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from tests.support import healthy_cluster
from tests.support.jobs.job_manifests import make_job

EVIL = "<script>alert('x')</script>"


class _Reader(html.parser.HTMLParser):
    """Texts of the cells, and whether every tag that is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.attributes = dict(attrs)
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
    cost = Cost("EUR", 1.5, 1.0, 2.0, None, "2 pods")
    return Recommendation("fit", (quantity,), cost, notes=("quotas may not be read",))


def _decision(action="scale", **changed):
    whole = ScaleDecision(1.0, action, 2, 3, EVIL, 100.0, 140.0, 1.0, applied=True)
    return dataclasses.replace(whole, **changed)


def _explanation():
    stays = _decision("stay", target=2, applied=False)
    decided = (DecisionOutcome(_decision(), 150.0), DecisionOutcome(stays))
    told = {"job": "team/fit", "replicas": 3, "mode": "auto", "allowed": "1-4"}
    empty = {field.name: () for field in dataclasses.fields(Explanation)}
    texts = {"unmanaged_reason": "", "pending_change": "", "source": "history"}
    return Explanation(**{**empty, **told, **texts, "decisions": decided})


def _course():
    looks = (make_progress(_job(), (), None), make_progress(_job(), (), None))
    return JobHistory(
        dataclasses.replace(look, step=10 * at, timestamp=float(at), nodes=at + 2)
        for at, look in enumerate(looks)
    )


def _record():
    signature = JobSignature("team", EVIL, "PyTorchJob", "any", "torchrun fit.py", 1, 0)
    peak = {"memory": 2.0e9}
    return RunRecord("uid", signature, 1.0, 61.0, "succeeded", {}, peak, decisions=(_decision(),))


def _injected():
    return inject(make_job(command=["torchrun", EVIL]), settings=InjectionSettings("sidecar:1"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (_job(), ("Running", "3 worker", "checkpoint.every")),
        (_recommendation(), ("memory", "history", "EUR/h", "may not be read")),
        (make_progress(_job(), (), None), ("Running", "0 of 3 run")),
        (JobList([_job()]), ("1 jobs", "Running", "2001-09-09")),
        (EventList([Event("Scaled", EVIL, warning=True, at=1e9)]), ("1 events", "Scaled", "!")),
        (_explanation(), ("2 to 3", "150", "stay at 2", "mode auto")),
        (_course(), ("2 looks", "0 to 10", "2 to 3")),
        (_record(), ("succeeded", "60", "2e+09")),
        (SuspendResult(_job(), 20, 10, 0), ("20", "10", "is paused")),
        (_injected(), ("digits, patched", "rover-sidecar", "rover-token")),
        (LogView(f"step 1\n{EVIL}"), ("step 1",)),
        (
            Diagnosis("team", tuple(check_facts(healthy_cluster.facts()))),
            ("0 broken", "native-sidecars"),
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_is_a_table(value, words):
    """It is whole HTML, holds what the value says, and nothing in it runs."""
    reader = _Reader()
    reader.feed(value._repr_html_())
    assert reader.open == []
    assert reader.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "pre"}
    for word in words:
        assert word in reader.text
    assert "rover-kf.io/injected" not in reader.text


def test_a_report_is_shown_in_a_frame(tmp_path):
    """Its page is the frame's, whole; a large one, or one that is gone, is named."""
    path = ReportFile(tmp_path / "report.html")
    assert str(path) in path._repr_html_()
    path.write_text(f"<html>{EVIL}</html>")
    reader = _Reader()
    reader.feed(path._repr_html_())
    assert reader.tags == {"iframe"}
    assert reader.attributes["srcdoc"] == path.read_text()
    assert reader.attributes["sandbox"] == "allow-scripts"
    path.write_text("x" * (SHOWN_BYTES + 1))
    assert path._repr_html_() == f"<p>{path}</p>"

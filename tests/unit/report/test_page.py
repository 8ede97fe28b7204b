# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report as a browser would read it."""

from __future__ import annotations

import dataclasses
import html.parser

import pytest

from rover_kf.api.data import Span
from rover_kf.api.decisions import Quantity, Recommendation, ScaleDecision
from rover_kf.api.hangs import Hang, StackGroup
from rover_kf.api.jobs import Event
from rover_kf.api.leases import DataStatus, PoisonShard, WorkerShare
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.api.samples import Goodput, Throughput
from rover_kf.report.page import render
from rover_kf.report.summary import summary

VOID = {"meta", "br", "link", "img", "input", "hr"}
EVIL = '<script>alert("x")</script>&"\''


def record(windows=12, **changes):
    rows = tuple(
        Throughput(
            1000.0 + 10 * i,
            1010.0 + 10 * i,
            2 if i < windows / 2 else 3,
            2 if i < windows / 2 else 3,
            20,
            1280,
            0.5 if i < windows / 2 else 0.34,
            64.0,
            save_seconds=0.004,
        )
        for i in range(windows)
    )
    made = RunRecord(
        uid="u",
        signature=JobSignature("team", "digits", "PyTorchJob", "digits:1", "python t.py", 1, 0),
        started_at=990.0,
        updated_at=1150.0,
        outcome="succeeded",
        requested={"replicas": 2.0, "memory": float(2 << 30)},
        peak={},
        windows=rows,
        goodput=Goodput(20, 110, 2, 4, 6),
        decisions=(
            ScaleDecision(1055, "stay", 2, 2, "1 of 2 windows", 128, 128, 1),
            ScaleDecision(1060, "scale", 2, 3, "2 -> 3 pays", 128, 192, 1, applied=True),
        ),
        events=(
            Event("WorldFormed", "2 nodes, 2 ranks", at=1000.0, source="digits-worker-0"),
            Event("TrainingProcessFailed", "rank 1 killed by SIGKILL", warning=True, at=1031.0),
            Event("CheckpointDurable", "step 40", at=1040.0),
            Event("Scaled", "Worker replicas 2 -> 3", at=1061.0),
        ),
        steps=240,
        total_steps=240,
        snapshot_bytes=1_200_000,
        save_seconds=0.0007,
        restart_seconds=0.4,
        restarts=1,
        checkpoint_every=10,
    )
    return dataclasses.replace(made, **changes)


class Page(html.parser.HTMLParser):
    """Checks that tags nest, and collects text and attributes."""

    def __init__(self, source):
        super().__init__()
        self.open, self.words, self.attributes, self.tags = [], [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def test_page_is_whole_and_tells_the_story():
    """It parses with every tag closed and holds verdict, every event and every reason."""
    page = Page(render(record(), now=2000.0))
    for event in record().events:
        assert event.reason in page.text
        assert event.message in page.text
    for decision in record().decisions:
        assert decision.reason in page.text
    assert "The run succeeded." in page.text
    assert "240 of 240" in page.text
    assert "1970-01-01 00:33:20 UTC" in page.text


def test_page_and_summary_tell_of_the_data():
    """How far it was read, by whom, and what was set aside, escaped as all texts are."""
    data = DataStatus(
        *("train", 1, 3, 5000, 1250, 64, 8, 120.4, 73.2),
        poison=(PoisonShard(Span("clicks/1", 32, 33), 1, EVIL),),
        workers=(WorkerShare("1/p9", 900, 32), WorkerShare("0/p8", 300, 32)),
    )
    page = Page(render(record(data=(data,))))
    assert "25.0%" in page.text
    assert "1250 of 5000" in page.text
    assert "rank 1 75.0%, rank 0 25.0%" in page.text
    assert EVIL in page.text
    assert page.tags.count("progress") == 1
    assert page.tags.count("table") == page.tags.count("caption")
    assert "- train: 25.0% of epoch 2, 8 set aside; used by rank 1 75.0%" in summary(
        record(data=(data,))
    )
    assert "progress" not in Page(render(record())).tags


def test_page_needs_nothing_else():
    """No address, script, import or link: one file that works offline."""
    source = render(record())
    page = Page(source)
    assert "http" not in source
    assert "url(" not in source
    assert "@import" not in source
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert not {"src", "href", "xlink:href", "onload"} & {name for name, _ in page.attributes}


def test_page_is_accessible():
    """Language, a title in every drawing, a caption and header cells in every table."""
    source = render(record())
    page = Page(source)
    assert ("lang", "en") in page.attributes
    assert page.tags.count("svg") == 4
    assert sum(1 for name, _ in page.attributes if name == "aria-labelledby") == 4
    assert page.tags.count("table") == page.tags.count("caption")
    assert "prefers-color-scheme: dark" in source
    assert "@media print" in source


def test_every_text_is_escaped():
    """Whatever a job calls itself or prints is shown, not run."""
    signature = JobSignature(EVIL, EVIL, EVIL, EVIL, EVIL, 1, 0)
    evil = record(
        signature=signature,
        verdict=EVIL,
        outcome=EVIL,
        events=(Event(EVIL, EVIL, at=1000.0, source=EVIL),),
        decisions=(ScaleDecision(1.0, EVIL, 1, 2, EVIL, 1, 1, 1),),
    )
    made = Recommendation(EVIL, (Quantity(EVIL, 1, 1, 1, EVIL, EVIL, 1, EVIL),))
    page = Page(render(evil, recommendation=made))
    assert "script" not in page.tags
    assert page.text.count('<script>alert("x")</script>') >= 12
    assert "<script" not in summary(evil)


@pytest.mark.parametrize("outcome", ["running", "succeeded", "failed", "deleted"])
def test_what_is_unknown_is_said_to_be(outcome):
    """A job of which nothing was measured: a page all the same, and no invented nought."""
    bare = record(
        windows=0,
        outcome=outcome,
        goodput=Goodput(),
        decisions=(),
        events=(),
        steps=0,
        total_steps=None,
        snapshot_bytes=0,
        save_seconds=0.0,
        restart_seconds=0.0,
        requested={},
    )
    page = Page(render(bare))
    assert page.text.count("not measured") >= 12
    assert "no window of steady training" in page.text
    assert "not measured" in summary(bare)


def test_recommendation_is_shown_in_its_units():
    """Bytes as MiB, with interval, basis and reason."""
    made = Recommendation(
        "digits",
        (Quantity("memory", 1 << 30, 1 << 29, 2 << 30, "bytes", "history", 2, "two runs"),),
    )
    page = Page(render(record(), recommendation=made))
    for words in ("1.0 GiB", "512.0 MiB", "2.0 GiB", "history", "two runs"):
        assert words in page.text


def test_page_of_a_long_run_stays_small():
    """As many windows and events as a record may hold: below 3 MiB."""
    events = tuple(Event("WorldFormed", f"round {i}", at=1000.0 + i) for i in range(1024))
    assert len(render(record(windows=2048, events=events)).encode()) < 3 << 20


def test_drawings_stay_inside_their_frame():
    """No box leaves the picture, whatever the times in the record say."""
    odd = record(started_at=0.0, events=(Event("Scaled", "late", at=99_999.0),))
    page = Page(render(odd))
    places = [float(value) for name, value in page.attributes if name in {"x", "x1", "x2"}]
    assert places
    assert all(0 <= place <= 720 for place in places)


def test_summary_is_markdown_of_the_same_facts():
    """Verdict, figures, changes and newest events in a few lines."""
    text = summary(record())
    assert text.startswith("# PyTorchJob team/digits\n")
    assert "| goodput | 77.5% |" in text
    assert "- 2 -> 3: 2 -&gt; 3 pays" in text
    assert "**TrainingProcessFailed**" in text


def test_hangs_show_every_stack():
    """Each hang with its sentence, and the whole stacks of each group; as text, not as markup."""
    assert "<h2>Hangs</h2>" not in render(record())
    groups = (
        StackGroup((1, 5), "R (running)", "read (ssl.py:7)", late=True, text=f"in read {EVIL}"),
        StackGroup((0,), "T (stopped)", "", late=False, text=""),
    )
    hang = Hang(1040.0, 1, 22, 301.0, 300.0, restarted=True, message="no step", stacks=groups)
    page = render(record(hangs=(hang,)))
    assert "did not arrive: ranks 1, 5, R (running): read (ssl.py:7)" in page
    assert "rank 0, T (stopped)</summary>" in page
    assert "in read &lt;script&gt;" in page
    assert EVIL not in page

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report as a browser would read it."""

from __future__ import annotations

import dataclasses
import html.parser

import pytest

from rover_kf.api.data import DataStatus, PoisonedShard, SlotSpan, WorkerShare
from rover_kf.api.decisions import Quantity, Recommendation, ScaleDecision
from rover_kf.api.faults.hang_reports import Hang, StackGroup
from rover_kf.api.jobs import Event
from rover_kf.api.records import JobSignature, ProgressSample, RunRecord
from rover_kf.api.samples import Goodput, Throughput
from rover_kf.report.event_parsing import read_rounds
from rover_kf.report.page import LiveOptions, render, summary
from rover_kf.report.run_charts import durable_lags, expect_rates

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
            Event(
                "WorldFormed",
                "round 1: 2 processes in 2 pods",
                at=1000.0,
                source="digits-worker-0",
            ),
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
        poison=(PoisonedShard(SlotSpan("clicks/1", 32, 33), 1, EVIL),),
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
    assert page.tags.count("table") == sum(value == "region" for _, value in page.attributes)
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


def test_every_drawing_has_its_numbers_as_text():
    """What is drawn of rounds, expectations, lag, stragglers and memory stands in a table, too."""
    slow = "rank 1 in digits-worker-1 takes 0.5 s of a step by itself"
    looks = (
        ProgressSample(1010.0, 20, 18, None, 128.0, memory=1.0 * 2**30, memory_limit=4.0 * 2**30),
        ProgressSample(1020.0, 40, 38, 20, 128.0, memory=2.0 * 2**30, memory_limit=4.0 * 2**30),
    )
    told = (*record().events, Event("Straggler", slow, warning=True, at=1100.0))
    source = render(record(events=told, looks=looks, peak={"memory": 3.0 * 2**30}))
    page = Page(source)
    assert "rank 1 killed by SIGKILL" in page.text
    for title in ("Durable lag (s)", "Memory (GiB)", "World over time", "Throughput (samples/s)"):
        assert title in page.text
    assert "at most 10 s" in page.text
    assert "1 time" in page.text
    assert slow in page.text
    assert "used at most, worst pod 3.0 GiB 75.0%" in page.text
    assert "the model, from other sizes" in page.text
    assert page.tags.count("polyline") == 4
    assert {"bad", "slow"} <= {
        word for name, value in page.attributes if name == "class" for word in value.split()
    }


def test_lag_is_the_age_of_what_storage_has():
    """Between looks the moment of a step is put in proportion; a step that is not there counts."""
    looks = (
        ProgressSample(100.0, 0, None, None),
        ProgressSample(110.0, 100, 90, None),
        ProgressSample(120.0, 200, 190, 50),
        ProgressSample(130.0, 300, 290, 300),
    )
    assert durable_lags(looks) == ((100.0, 0.0), (110.0, 10.0), (120.0, 15.0), (130.0, 0.0))
    again = (*looks, ProgressSample(140.0, 250, 240, 200), ProgressSample(150.0, 350, 340, 200))
    assert [round(lag, 1) for _, lag in durable_lags(again)[4:]] == [20.0, 30.0]


def test_expectation_comes_from_the_windows_before():
    """Of the first world nothing; of a size that was seen its median; else an interval's width."""
    told = expect_rates(record().windows)
    assert [(one.world_size, one.measured_before) for one in told] == [(3, False)]
    (one,) = told
    assert one.lower < one.rate < one.upper
    assert one.measured == pytest.approx(64 / 0.34)
    assert one.met == (one.lower <= one.measured <= one.upper)
    back = tuple(dataclasses.replace(w, nodes=2, world_size=2) for w in record().windows[:3])
    later = tuple(
        dataclasses.replace(w, started_at=w.started_at + 500, ended_at=w.ended_at + 500)
        for w in back
    )
    assert [one.measured_before for one in expect_rates((*record().windows, *later))] == [
        False,
        True,
    ]


def test_rounds_end_where_something_ended_them():
    """By a failure, by the next round, or with the record."""
    told = (
        Event("WorldFormed", "round 1: 2 processes in 2 pods", at=1000.0),
        Event("TrainingProcessFailed", "rank 1 in w-1: killed", warning=True, at=1030.0),
        Event("WorldFormed", "round 2: 2 processes in 2 pods", at=1032.0),
        Event("WorldFormed", "round 3: 3 processes in 3 pods", at=1061.0),
    )
    found = read_rounds(record(events=told))
    assert [(one.number, one.start, one.end, one.processes) for one in found] == [
        (1, 1000.0, 1030.0, 2),
        (2, 1032.0, 1061.0, 2),
        (3, 1061.0, 1150.0, 3),
    ]
    assert found[0].ended_by == "TrainingProcessFailed: rank 1 in w-1: killed"
    assert found[1].ended_by == ""


def test_a_live_page_has_one_script_and_the_file_none():
    """The server's policy lets just that one run."""
    live = Page(render(record(), live=LiveOptions(2.0, "abc")))
    assert live.tags.count("script") == 1
    assert ("nonce", "abc") in live.attributes
    assert "script" not in Page(render(record())).tags


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

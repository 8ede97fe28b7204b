# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report's drawings and tables out of a record; pure."""

from __future__ import annotations

from rover_kf.api import names
from rover_kf.api.jobs import Event
from rover_kf.api.leases import DataStatus
from rover_kf.api.records import RunRecord
from rover_kf.report import charts, text
from rover_kf.report.charts import Chart, Moment, Span, Words

FAILURES = (
    names.EVENT_PROCESS_FAILED,
    names.EVENT_POD_LOST,
    names.EVENT_MEMBER_LOST,
    names.EVENT_HANG,
    names.EVENT_JOB_FAILED,
)
WORLDS = (names.EVENT_WORLD_FORMED, names.EVENT_RECOVERED, names.EVENT_MEMBER_LEFT)
CHANGES = (names.EVENT_SCALED, names.EVENT_SCALE_ROLLED_BACK)


def period(record: RunRecord) -> tuple[float, float]:
    """First and last moment that the record speaks of, Unix seconds."""
    moments = [record.started_at, record.updated_at]
    moments += [event.at for event in record.events if event.at]
    moments += [at for window in record.windows for at in (window.started_at, window.ended_at)]
    seen = [at for at in moments if at]
    return (min(seen), max(seen)) if seen else (0.0, 1.0)


def world(record: RunRecord) -> Chart:
    """Nodes over time with failures, rounds and changes of replicas."""
    spans = [
        Span(w.started_at, w.ended_at, w.nodes, "node", f"{w.nodes} nodes, {w.world_size} ranks")
        for w in record.windows
    ]
    words = Words(
        "world",
        "World over time",
        "Nodes that trained together, in windows of steady training; gaps are starts, recoveries "
        "and changes of the world. Lines mark failures, new rounds and changes of replicas.",
        (("node", "nodes"), ("bad", "failure"), ("round", "new round"), ("change", "replicas set")),
    )
    return charts.draw(words, spans, _moments(record), period=period(record))


def throughput(record: RunRecord) -> Chart:
    """Measured windows, and what decisions that were applied had promised."""
    told = any(window.global_batch for window in record.windows)
    unit = "samples/s" if told else "steps/s"
    spans = []
    for window in record.windows:
        rate = window.samples_per_second if told else 1 / (window.step_seconds or float("inf"))
        title = f"{text.number(rate, unit)} at {window.nodes} nodes"
        spans.append(Span(window.started_at, window.ended_at, rate, "rate", title))
    until = period(record)[1]
    for decision in reversed([item for item in record.decisions if item.applied]):
        title = f"{text.number(decision.predicted, unit)} predicted for {decision.target} replicas"
        spans.append(Span(decision.at, until, decision.predicted, "promise", title, thin=True))
        until = decision.at
    words = Words(
        "throughput",
        f"Throughput ({unit})",
        "Each box is a window of steady training; a line is what the model had predicted when a "
        "change of replicas was decided.",
        (("rate", "measured"), ("promise", "predicted"), ("bad", "failure")),
    )
    failures = [moment for moment in _moments(record) if moment.kind == "bad"]
    return charts.draw(words, spans, failures, period=period(record))


def checkpoints(record: RunRecord) -> Chart:
    """Time blocked by saves in each window, and when a checkpoint became durable."""
    spans = [
        Span(
            w.started_at,
            w.ended_at,
            1000 * w.save_seconds,
            "save",
            f"{text.seconds(w.save_seconds)} blocked by saves in {w.steps} steps",
        )
        for w in record.windows
    ]
    durable = [
        Moment(event.at, "durable", event.message)
        for event in record.events
        if event.reason == names.EVENT_DURABLE
    ]
    words = Words(
        "checkpoints",
        "Checkpoints (ms blocked a window)",
        "How long saving to memory held the training up, summed over each window (slowest rank); "
        "lines mark checkpoints that became durable on storage.",
        (("save", "blocked by saves"), ("durable", "durable on storage")),
    )
    return charts.draw(words, spans, durable, period=period(record))


def goodput(record: RunRecord) -> tuple[tuple[str, str, float], ...]:
    """(class, words, seconds) of what the job's time was spent on."""
    spent = record.goodput
    return (
        ("productive", "training", spent.productive),
        ("checkpoint", "blocked by saves", spent.checkpoint),
        ("redone", "steps made again after a failure", spent.redone),
        ("recovery", "recovery from failures", spent.recovery),
        ("rendezvous", "coming together after a failure", spent.rendezvous),
        ("scaling", "changes of the world", spent.scaling),
        ("waiting", "waiting for pods and first start", spent.waiting),
    )


def figures(record: RunRecord) -> tuple[tuple[str, str], ...]:
    """The run in a few numbers."""
    total = f" of {record.total_steps}" if record.total_steps is not None else ""
    start, end = period(record)
    measured = bool(record.goodput.total)
    saved = bool(record.snapshot_bytes)
    return (
        ("lasted", text.seconds(end - start)),
        ("steps", f"{record.steps}{total}" if record.steps else text.UNKNOWN),
        ("goodput", text.share(record.goodput.fraction) if measured else text.UNKNOWN),
        ("restarts in place", str(record.restarts)),
        ("last change of the world took", text.measured_seconds(record.restart_seconds)),
        ("snapshot of one rank", text.size(record.snapshot_bytes)),
        ("a save blocked for", text.seconds(record.save_seconds) if saved else text.UNKNOWN),
        ("saved every", f"{record.checkpoint_every} steps" if record.checkpoint_every else "-"),
        ("memory asked for, a replica", text.size(record.requested.get("memory"))),
        ("memory used, worst pod", text.size(record.peak.get("memory"))),
        ("CPU asked for, a replica", text.number(record.requested.get("cpu"), "cores")),
        ("CPU used, worst pod", text.number(record.peak.get("cpu"), "cores")),
    )


def shares(data: DataStatus) -> str:
    """What each rank has used of what all have."""
    whole = sum(share.used for share in data.workers)
    told = (f"rank {one.rank} {text.share(one.used / whole)}" for one in data.workers if one.used)
    return ", ".join(told) or text.UNKNOWN


def verdict(record: RunRecord) -> str:
    """One sentence on how the run ended."""
    ended = {
        "succeeded": "The run succeeded.",
        "failed": "The run failed.",
        "deleted": "The job was deleted before it ended.",
        "running": "The run has not ended yet.",
    }
    return f"{ended.get(record.outcome, record.outcome)} {record.verdict}".strip()


def _moments(record: RunRecord) -> list[Moment]:
    return [
        Moment(event.at, _kind(event), f"{event.reason}: {event.message}")
        for event in record.events
        if _kind(event) and event.at
    ]


def _kind(event: Event) -> str:
    for kind, reasons in (("bad", FAILURES), ("round", WORLDS), ("change", CHANGES)):
        if event.reason in reasons:
            return kind
    return ""

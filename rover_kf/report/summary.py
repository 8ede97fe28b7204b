# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report in a few lines of Markdown, for a pipeline's run page or a terminal."""

from __future__ import annotations

import re

from rover_kf.api.leases import DataStatus
from rover_kf.api.records import RunRecord
from rover_kf.report import sections, text

NEWEST = 10


def summary(record: RunRecord) -> str:
    """Summarise a run in Markdown; its texts are escaped and stay on one line."""
    job = record.signature
    lines = [
        f"# {_plain(job.kind)} {_plain(job.namespace)}/{_plain(job.name)}",
        "",
        _plain(sections.verdict(record)),
        "",
        "| | |",
        "|---|---|",
        *(f"| {_plain(name)} | {_plain(value)} |" for name, value in sections.figures(record)),
    ]
    changes = [item for item in record.decisions if item.action != "stay"]
    if changes:
        lines += ["", "## Changes of replicas", ""]
        lines += [f"- {item.change}: {_plain(item.reason)}" for item in changes]
    if record.data:
        lines += ["", "## Data", ""]
        lines += [f"- {_plain(_read(data))}" for data in record.data]
    if record.events:
        lines += ["", "## Newest events", ""]
        for event in record.events[-NEWEST:]:
            when = text.since(event.at, record.started_at)
            lines.append(f"- {when} **{_plain(event.reason)}** {_plain(event.message)}")
    return "\n".join(lines) + "\n"


def _read(data: DataStatus) -> str:
    aside = f", {data.poisoned} set aside" if data.poisoned else ""
    share = f"{text.share(data.done / data.slots)} of " if data.slots else ""
    return f"{data.name}: {share}epoch {data.epoch + 1}{aside}; used by {sections.shares(data)}"


def _plain(given: str) -> str:
    """Text with Markdown's and HTML's characters made harmless."""
    one_line = " ".join(given.split())
    escaped = re.sub(r"([\\`*_{}\[\]()#!|~])", r"\\\1", one_line)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

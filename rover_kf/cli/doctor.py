# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf doctor``: what a cluster lacks, and how to mend it. Nothing is created by it."""

from __future__ import annotations

import collections
import pathlib

import click
from rich.text import Text

from rover_kf.cli.options import PATH, ConnectionOptions
from rover_kf.cli.output import FORMAT, print_value
from rover_kf.client import manifests
from rover_kf.doctor import Diagnosis, Finding

MARKS = {"good": "ok", "warning": "!", "broken": "✗", "unknown": "?"}
STYLES = {"good": "green", "warning": "yellow", "broken": "bold red", "unknown": "dim"}


@click.command()
@click.argument("file", metavar="[JOB.yaml]", required=False, type=PATH)
@click.option("-n", "--namespace", help="That jobs go to [default: the job's, else default].")
@FORMAT
@click.pass_obj
def doctor(
    connection: ConnectionOptions, file: pathlib.Path | None, namespace: str | None, output: str
) -> int:
    """Find what a cluster lacks for rover-kf, and say how to mend it.

    With JOB.yaml it tries that very job: its pods, claims, memory. Nothing is created: what the
    API server would say is asked by dry runs. Ends with 1 if something is broken; what the caller
    may not look at is told as unknown.
    """
    source = None if file is None else manifests.load(file)
    where = namespace or ("default" if source is None else source.key.namespace)
    with connection.kubernetes() as rover:
        found = rover.diagnose(where, None if source is None else source.job)
    lines = [format_finding(finding) for finding in found.findings]
    print_value(found, output, *lines, Text(format_summary(found)))
    return 1 if found.broken else 0


def format_finding(finding: Finding) -> Text:
    """One finding, and what to do about it below."""
    text = Text()
    text.append(f"{MARKS[finding.verdict]:<3}", style=STYLES[finding.verdict])
    text.append(f"{finding.check}: ", style="bold")
    text.append(finding.message)
    if finding.fix:
        text.append("\n   mend: ", style=STYLES[finding.verdict])
        text.append(finding.fix)
    return text


def format_summary(diagnosis: Diagnosis) -> str:
    """How many findings of which kind."""
    counts = collections.Counter(str(finding.verdict) for finding in diagnosis.findings)
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in MARKS if counts[verdict])
    return f"namespace {diagnosis.namespace}: {told}"

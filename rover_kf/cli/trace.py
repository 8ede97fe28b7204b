# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf trace``: what a job's recoveries were made of, as OpenTelemetry traces."""

from __future__ import annotations

import json
import os
import pathlib
import time

import click

from rover_kf.cli.jobs import NAME, NAMESPACE
from rover_kf.cli.place import Place
from rover_kf.client import text_file, trace_receiver
from rover_kf.client.job_name import key_of
from rover_kf.client.present import Present
from rover_kf.report import otlp


@click.command()
@NAME
@NAMESPACE
@click.option("-o", "--output", type=click.Path(path_type=pathlib.Path), help="File to write.")
@click.option(
    "--endpoint",
    metavar="URL",
    help="Receiver of OTLP over HTTP to send them to: http://collector:4318.",
)
@click.pass_obj
def trace(
    place: Place, name: str, namespace: str, output: pathlib.Path | None, endpoint: str | None
) -> None:
    """Tell a job's recoveries as OpenTelemetry traces: OTLP's JSON, printed, written or sent.

    One trace a change of its world: rendezvous, each rank's restore, first step. What is under way
    is left out; the same change has the same ids each time, so that it may be sent again.
    Headers come of $OTEL_EXPORTER_OTLP_HEADERS.
    """
    if endpoint:
        trace_receiver.address(endpoint)  # refused before anybody is asked
    with place.client() as rover:
        record = Present(rover.cluster, rover.history).record(key_of(namespace, name), time.time())
    found = otlp.document(record)
    traces, spans = otlp.count(found)
    text = json.dumps(found, indent=2) + "\n"
    if output is not None:
        text_file.write(output, text)
    if endpoint and spans and (said := trace_receiver.send(found, endpoint, os.environ)):
        click.echo(f"warning: {said}", err=True)
    if output is None and not endpoint:
        click.echo(text, nl=False)
    sent = " sent" if endpoint and spans else ""
    click.echo(f"{traces} traces, {spans} spans{sent}", err=True)


VERBS = (trace,)

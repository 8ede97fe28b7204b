# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf trace``: what a job's recoveries were made of, as OpenTelemetry traces."""

from __future__ import annotations

import pathlib
import time

import click

from rover_kf import errors
from rover_kf.cli.connection_options import ConnectionOptions
from rover_kf.cli.job_verbs import NAME, NAMESPACE
from rover_kf.client import text_file
from rover_kf.client.current_record import CurrentRecords
from rover_kf.client.job_name import parse_name


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
    connection: ConnectionOptions,
    name: str,
    namespace: str,
    output: pathlib.Path | None,
    endpoint: str | None,
) -> None:
    """Tell a job's recoveries as OpenTelemetry traces: OTLP's JSON, printed or written, or sent.

    One trace a change of its world: rendezvous, each rank's restore, first step. What is under way
    is left out; the same change has the same ids each time, so that it may be sent again.
    Headers come of $OTEL_EXPORTER_OTLP_HEADERS. Needs the extra rover-kf[otel].
    """
    try:
        # Slow to import, and not everybody has a receiver of traces.
        from rover_kf.client import trace_receiver  # noqa: PLC0415
        from rover_kf.report import otlp  # noqa: PLC0415
    except ImportError as cause:
        message = "traces need OpenTelemetry's SDK and exporter: pip install 'rover-kf[otel]'"
        raise errors.InputError(message) from cause
    if endpoint:
        trace_receiver.traces_url(endpoint)  # refused before anybody is asked
    with connection.client() as rover:
        record = CurrentRecords(rover.cluster, rover.history).record(
            parse_name(namespace, name), time.time()
        )
    made = otlp.spans(record)
    if output is not None:
        text_file.write(output, otlp.text(made))
    if endpoint and made and (warning := trace_receiver.send(made, endpoint)):
        click.echo(f"warning: {warning}", err=True)
    if output is None and not endpoint:
        click.echo(otlp.text(made), nl=False)
    traces, spans = otlp.count_spans(made)
    sent = " sent" if endpoint and made else ""
    click.echo(f"{traces} traces, {spans} spans{sent}", err=True)


VERBS = (trace,)

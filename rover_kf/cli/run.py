# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf run`` and ``rover-kf train``: a manifest, or a torchrun script, as an elastic job.

An embedded job is shown until its end, and drained when it is interrupted.
"""

from __future__ import annotations

import pathlib
import shlex
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Console

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.cli import exit_codes, recommend
from rover_kf.cli.options import DRY_RUN, FILE, NAMESPACE, PATH, REPORT, ConnectionOptions
from rover_kf.cli.patch import print_patch_diff
from rover_kf.client import Progress, RoverClient, script_manifest
from rover_kf.client.progress_display import ProgressDisplay
from rover_kf.client.script_manifest import Resources, TrainingSpec
from rover_kf.injection import patch_diff
from rover_kf.injection.validation import validate
from rover_kf.system.signals import StopSignals

DRAIN_SECONDS = 60.0


def exit_on_sigterm() -> None:
    """Let SIGTERM end the command with its exit code, by way of everything that cleans up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(exit_codes.TERMINATED))


def run_to_end(
    rover: RoverClient, submit: Callable[[], JobKey], report: pathlib.Path | None
) -> int:
    """Submit an embedded job, show it until it ends, and return the command's exit code."""
    console = Console()
    with StopSignals(exit_on_second=True) as interrupts:
        key = submit()
        last = _follow(rover, key, console, interrupts)
        if interrupts.code:
            _drain(rover, key)
            return interrupts.code
    if report is not None:
        console.print(f"report: {rover.report(key, report)}", soft_wrap=True)
    if last.phase != "Succeeded":
        click.echo(f"error: {key} is {last.phase}: {rover.verdict(key)}", err=True)
        return 1
    return 0


def _follow(rover: RoverClient, key: JobKey, console: Console, interrupts: StopSignals) -> Progress:
    with ProgressDisplay(console) as screen:
        for progress in rover.watch(key):
            screen.show(progress)
            if interrupts.code:
                break
    return progress


def _drain(rover: RoverClient, key: JobKey) -> None:
    """Delete the job and wait until its pods have gone, as a cluster would."""
    click.echo(f"draining {key}", err=True)
    rover.delete(key)
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline:
        try:
            rover.get(key)
        except errors.NoSuchJob:
            rover.settle(key)
            click.echo(f"{key} was ended; rover-kf report {key.name} tells of it", err=True)
            return
        time.sleep(0.05)


@click.command()
@FILE
@click.option("--inject/--no-inject", default=True, help="Patch the job before it runs.")
@REPORT
@DRY_RUN
@click.pass_obj
def run(
    connection: ConnectionOptions,
    file: pathlib.Path,
    inject: bool,
    report: pathlib.Path | None,
    dry_run: bool,
) -> int:
    """Run a PyTorchJob on this machine: recommend, patch, train, record.

    Ctrl-C drains the job and leaves nothing behind; checkpoints on its claims stay.
    """
    exit_on_sigterm()
    with connection.embedded() as rover:
        if dry_run:
            print_patch_diff(rover, file)
            return 0
        _recommend(rover, file, Console())
        return run_to_end(
            rover, lambda: rover.submit(file, inject=inject).key, report if inject else None
        )


def _recommend(rover: RoverClient, file: pathlib.Path, console: Console) -> None:
    found = rover.recommend(file)
    if console.is_terminal:
        console.print(recommend.size_table(found))
    else:
        click.echo("\n".join(recommend.format_lines(found)))


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--replicas",
    default="1",
    show_default=True,
    help="4, or fewest and most: 1:4, between which its throughput decides (scaling.mode auto).",
)
@click.option("--start", type=click.IntRange(1), help="Replicas at first [default: the most].")
@click.option("--processes", default=1, show_default=True, help="Of training, in each replica.")
@click.option("--checkpoints", default="", help="Folder (embedded), claim:NAME or s3://… to keep.")
@click.option("--set", "policy", multiple=True, metavar="KEY=VALUE", help="docs/policy.md.")
@click.option("--image", default="", help="With Python and torch: trains on the cluster.")
@click.option("--cpu", default="", help="Of a replica, such as 2.")
@click.option("--memory", default="", help="Of a replica, such as 4Gi.")
@click.option("--gpu", default="", help="Of a replica.")
@click.option("--name", default="", help="Of the job [default: made of the script's].")
@NAMESPACE
@REPORT
@DRY_RUN
@click.argument("script", metavar="SCRIPT", type=PATH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def train(connection: ConnectionOptions, /, script: pathlib.Path, **given: Any) -> int:
    """Train with SCRIPT, which torchrun could start; ARGUMENTS are its own.

    On this machine it is shown until it ends. With --image, or --on kubernetes, it is submitted to
    the cluster, its script in a ConfigMap that goes with the job. A script need not know rover-kf:
    it is restarted after a failure, at any number of replicas within the bounds; a few lines of
    rover_kf let it go on where it was (docs/quickstart.md).
    """
    asked = _parse_options(script, given)
    on_cluster = bool(asked.image) or connection.read_settings().cluster == "kubernetes"
    if given["dry_run"]:
        _print_manifests(asked, on_cluster=on_cluster)
        return 0
    if on_cluster:
        with connection.kubernetes() as rover:
            key = rover.start_training(asked).key
        click.echo(f"{key} created; rover-kf --on kubernetes watch -n {key.namespace} {key.name}")
        return 0
    exit_on_sigterm()
    with connection.embedded() as rover:
        code = run_to_end(rover, lambda: _start(rover, connection, asked), given["report"])
    if code in (0, 1):  # else it was interrupted, and is gone
        click.echo(f"what it printed: {_logs_command(connection, asked)}")
    return code


def _parse_options(script: pathlib.Path, given: dict[str, Any]) -> TrainingSpec:
    least, most = script_manifest.parse_replicas(given["replicas"])
    return TrainingSpec(
        script=script,
        name=given["name"] or script_manifest.unique_name(script.stem),
        min_replicas=least,
        max_replicas=most,
        start=given["start"] or 0,
        arguments=given["arguments"],
        namespace=given["namespace"],
        processes=given["processes"],
        image=given["image"],
        resources=Resources(given["cpu"], given["memory"], given["gpu"]),
        checkpoints=given["checkpoints"],
        policy=dict(_parse_pair(text) for text in given["policy"]),
    )


def _parse_pair(text: str) -> tuple[str, str]:
    key, equal, value = text.partition("=")
    if not equal or not key:
        raise errors.InputError(f"--set {text!r}; allowed: KEY=VALUE, such as checkpoint.every=50")
    return key, value


def _start(rover: RoverClient, connection: ConnectionOptions, spec: TrainingSpec) -> JobKey:
    key = rover.start_training(spec).key
    click.echo(f"{key} created; what it prints: {_logs_command(connection, spec)}")
    return key


def _logs_command(connection: ConnectionOptions, spec: TrainingSpec) -> str:
    """The command that shows what the first replica printed."""
    words = ["rover-kf", *(["--state", str(connection.state)] if connection.state else []), "logs"]
    words += ["-n", spec.namespace] if spec.namespace != "default" else []
    return shlex.join([*words, spec.name])


def _print_manifests(spec: TrainingSpec, *, on_cluster: bool) -> None:
    """Print all that would be created, as files for kubectl; InputError if it is refused."""
    make = script_manifest.make_embedded_job
    if on_cluster:
        make = script_manifest.make_cluster_job
    job = make(spec)
    validate.validate(job, source=str(spec.script), allow_unmounted=not on_cluster)
    documents = [job]
    if on_cluster:
        documents.insert(0, script_manifest.make_script_config_map(spec))
        click.echo(_BY_HAND, nl=False)
    click.echo("---\n".join(patch_diff.to_yaml(document) for document in documents), nl=False)


_BY_HAND = """\
# For kubectl apply -f FILE where rover-kf's webhook injects; elsewhere for
# rover-kf patch FILE | kubectl apply -f -
# The ConfigMap made so has no owner: it stays when the job is deleted, and is deleted by hand.
"""

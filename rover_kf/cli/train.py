# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf train``: a torchrun script as an elastic job, without a manifest."""

from __future__ import annotations

import pathlib
import shlex
from typing import Any

import click

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.cli import foreground_job
from rover_kf.cli.connection_options import ConnectionOptions
from rover_kf.cli.patch import DRY_RUN
from rover_kf.client import RoverClient
from rover_kf.client.scripts import script_manifest
from rover_kf.client.scripts.script_manifest import Resources, TrainingSpec
from rover_kf.injection import patch_diff
from rover_kf.injection.validation import validate


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
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option("--report", type=click.Path(path_type=pathlib.Path), help="Report to write, HTML.")
@DRY_RUN
@click.argument("script", metavar="SCRIPT", type=click.Path(path_type=pathlib.Path))
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
    foreground_job.exit_on_sigterm()
    with connection.embedded() as rover:
        code = foreground_job.run_to_end(
            rover, lambda: _start(rover, connection, asked), given["report"]
        )
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
    """All that would be created, as files for kubectl.

    Raises:
        InputError: it would be refused.
    """
    job = (
        script_manifest.make_cluster_job(spec)
        if on_cluster
        else script_manifest.make_embedded_job(spec)
    )
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

VERBS = (train,)

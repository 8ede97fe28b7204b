# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The verb patch, and what other verbs would create or change. Nothing is created by it."""

from __future__ import annotations

import contextlib
import pathlib

import click

from rover_kf import errors
from rover_kf.api.jobs import Manifest
from rover_kf.cli.connection_options import Place
from rover_kf.client import RoverClient, manifests, text_file
from rover_kf.client.manifests import Source
from rover_kf.client.patches import Change
from rover_kf.client.storage_bandwidth import paced
from rover_kf.history import open_history
from rover_kf.injection import patch_diff
from rover_kf.injection.inject import Injected, inject

FILE = click.argument("file", metavar="JOB.yaml", type=click.Path(path_type=pathlib.Path))
DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Show what would change, and create nothing."
)
OF_JOB = click.option(
    "--dry-run", is_flag=True, help="Show what would change of the job, and change nothing."
)


@click.command()
@FILE
@click.option("-o", "--output", type=click.Path(path_type=pathlib.Path), help="File to write.")
@click.option("--diff", "--dry-run", is_flag=True, help="Show what would change instead.")
@click.pass_obj
def patch(place: Place, file: pathlib.Path, output: pathlib.Path | None, diff: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Print the file with the job patched, ready for ``kubectl apply -f -``.

    How long a pod may take to end goes by what its storage took in earlier runs, if the history
    knows of any; standard error says so. Patching a patched file changes nothing.
    """
    source = manifests.load(file)
    told = place.read_settings()
    with contextlib.closing(open_history.at(told.history)) as history:
        known, learnt = paced(source, history) if told.has_history else (source, "")
    done = inject(known.job, settings=told.injection, source=source.name)
    for note in filter(None, (learnt, *done.notes)):
        click.echo(note, err=True)
    job = _told(source, done)
    text = source.with_job(job).to_yaml()
    if diff:
        text = patch_diff.diff(source.job, job, source=source.name)
    if output is None:
        click.echo(text, nl=False)
    else:
        text_file.write(output, text)


def tell_difference(rover: RoverClient, file: pathlib.Path) -> None:
    """Print as a diff what submitting a file would change of it.

    Raises:
        InputError: it would be refused.
    """
    source = manifests.load(file)
    job = _told(source, rover.patch(file))
    click.echo(patch_diff.diff(source.job, job, source=source.name), nl=False)


def tell_change(rover: RoverClient, wanted: Change) -> None:
    """Print as a diff what a verb would write on a job.

    Raises:
        InputError: the API server, or a webhook, would refuse it.
    """
    if wanted.patch and (why := rover.cluster.try_patch(wanted.job.key, wanted.patch)):
        raise errors.InputError(why)
    click.echo(wanted.difference, nl=False)
    if not wanted.difference:
        click.echo(f"nothing would change: {wanted.job.key} is so already", err=True)


def _told(source: Source, done: Injected) -> Manifest:
    """The patched job, after its warnings were told."""
    for event in done.warnings:
        click.echo(f"warning: {event.message}", err=True)
    # Equal but for the order of keys is equal: a patched file comes out as it went in.
    return source.job if done.manifest == source.job else done.manifest


VERBS = (patch,)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The verb patch, and what other verbs would create or change. Nothing is created by it."""

from __future__ import annotations

import contextlib
import pathlib

import click

from rover_kf import errors
from rover_kf.api.jobs import Manifest
from rover_kf.cli.options import FILE, PATH, ConnectionOptions
from rover_kf.client import RoverClient, manifests
from rover_kf.client.manifests import ManifestSource
from rover_kf.client.patches import JobChange
from rover_kf.client.submission import apply_storage_bandwidth
from rover_kf.history import store
from rover_kf.injection import patch_diff
from rover_kf.injection.inject import Injected, inject


@click.command()
@FILE
@click.option("-o", "--output", type=PATH, help="File to write.")
@click.option("--diff", "--dry-run", is_flag=True, help="Show what would change instead.")
@click.pass_obj
def patch(
    connection: ConnectionOptions, file: pathlib.Path, output: pathlib.Path | None, diff: bool
) -> None:
    """Print the file with the job patched, ready for ``kubectl apply -f -``.

    How long a pod may take to end goes by what its storage took in earlier runs, if the history
    knows of any; standard error says so. Patching a patched file changes nothing.
    """
    source = manifests.load(file)
    told = connection.read_settings()
    with contextlib.closing(store.open_history(told.history)) as history:
        learns = told.has_history
        known, learnt = apply_storage_bandwidth(source, history) if learns else (source, "")
    done = inject(known.job, settings=told.injection, source=source.name)
    for note in filter(None, (learnt, *done.notes)):
        click.echo(note, err=True)
    job = _patched_job(source, done)
    text = source.with_job(job).to_yaml()
    if diff:
        text = patch_diff.diff(source.job, job, source=source.name)
    if output is None:
        click.echo(text, nl=False)
    else:
        manifests.write_text(output, text)


def print_patch_diff(rover: RoverClient, file: pathlib.Path) -> None:
    """Print as a diff what submitting a file would change; InputError if it is refused."""
    source = manifests.load(file)
    job = _patched_job(source, rover.patch(file))
    click.echo(patch_diff.diff(source.job, job, source=source.name), nl=False)


def print_change_diff(rover: RoverClient, change: JobChange) -> None:
    """Print as a diff what a verb would write on a job; InputError if it is refused."""
    if change.patch and (why := rover.cluster.dry_run_patch(change.job.key, change.patch)):
        raise errors.InputError(why)
    click.echo(change.diff, nl=False)
    if not change.diff:
        click.echo(f"nothing would change: {change.job.key} is so already", err=True)


def _patched_job(source: ManifestSource, injected: Injected) -> Manifest:
    """The patched job, after its warnings were told."""
    for event in injected.warnings:
        click.echo(f"warning: {event.message}", err=True)
    # Equal but for the order of keys is equal: a patched file comes out as it went in.
    return source.job if injected.manifest == source.job else injected.manifest

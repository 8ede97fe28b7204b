# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf checkpoint``: what stands on storage; needs no cluster and no running job."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import click

from rover_kf import errors
from rover_kf.api import codec
from rover_kf.checkpoint.format.manifest import CheckpointFolder
from rover_kf.checkpoint_tools import inspection as checkpoint_tools_listing
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState, open_state
from rover_kf.checkpoint_tools.diff import StateDifference, diff_states
from rover_kf.checkpoint_tools.export import Format
from rover_kf.checkpoint_tools.export import export as write
from rover_kf.checkpoint_tools.inspection import (
    CheckpointVerification,
    inspect_folders,
    verify_checkpoint,
)
from rover_kf.checkpoint_tools.locate import CheckpointLocation, absolute_location, locate
from rover_kf.cli import checkpoint_tables as tables
from rover_kf.cli import output, run
from rover_kf.cli.options import PATH as FILE_PATH

PATH = click.argument("path")
STEP = click.option("--step", type=int, help="Which step of a job's folder [default: the newest].")
RANK = click.option(
    "--rank", default=0, show_default=True, help="Whose own tensors and plain values to take."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def checkpoint() -> None:
    """Look at checkpoints on storage, compare, export and remove them.

    PATH is a job's folder, <checkpoint.path>/<job>, or one checkpoint folder of it; or the URL of
    one, as in checkpoint.path, with the store's credentials in the environment.
    """


@checkpoint.command("ls")
@PATH
@JSON
def list_checkpoints(path: str, as_json: bool) -> None:
    """List checkpoints: what they are, or what is wrong with them."""
    place = locate(path)
    found = tuple(inspect_folders(place.storage, place.folders()))
    if not found:
        click.echo(f"{path} holds no checkpoint; PATH is <checkpoint.path>/<job>", err=True)
    if as_json:
        _print_json([{**codec.encode(item), "whole": not item.problem} for item in found])
    else:
        output.print_parts(tables.checkpoint_table(found, time.time()))


@checkpoint.command()
@PATH
@STEP
@RANK
@JSON
def show(path: str, step: int | None, rank: int, as_json: bool) -> None:
    """Show what a checkpoint holds, put together from all its files."""
    state = _open_checkpoint(locate(path), step, rank)
    if as_json:
        _print_json(tables.describe_state(state))
        return
    output.print_parts(*tables.render_state(state))


@checkpoint.command()
@PATH
@click.option("--step", type=int, help="Only this step of a job's folder.")
@JSON
def verify(path: str, step: int | None, as_json: bool) -> int:
    """Read every byte and compare the checksums; exit code 1 if not all could be read and is right.

    Folders without a manifest are no checkpoints: they are damage only if PATH or --step names one.
    """
    place = locate(path)
    folders = [folder for folder in place.folders() if step in (None, folder.step)]
    if not folders:
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise errors.InputError(f"{path} holds {which}: there is nothing to verify")
    named = place.selected is not None or step is not None
    found: list[CheckpointVerification] = []
    for folder in folders:
        found.append(verify_checkpoint(place.storage, folder))
        if not as_json:
            click.echo("\n".join(tables.format_verification(found[-1])))
    if as_json:
        _print_json([{**codec.encode(item), "whole": item.is_intact} for item in found])
    return int(any(not item.is_intact and (named or not item.unfinished) for item in found))


@checkpoint.command()
@click.argument("a")
@click.argument("b")
@JSON
def diff(a: str, b: str, as_json: bool) -> int:
    """Compare two checkpoints bit by bit; exit code 0 if they are equal, 1 if not.

    Of a job's folder the newest whole checkpoint is taken. Ranks' own tensors are compared rank by
    rank, as far as both worlds have them.
    """
    left, right = (_open_checkpoint(locate(path), None, 0) for path in (a, b))
    found: list[StateDifference] = []
    for difference in diff_states(left, right):
        found.append(difference)
        if not as_json:
            click.echo(tables.format_difference(difference))
    if as_json:
        _print_json({"equal": not found, "differences": codec.encode(tuple(found))})
    else:
        click.echo(tables.format_comparison(left, right, len(found)))
    return 1 if found else 0


@checkpoint.command()
@PATH
@click.argument("out", type=FILE_PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "torch", "dcp", "folder"]),
    required=True,
    help="One file of tensors by name, torch.save's file, torch's distributed checkpoint, or the "
    "files that a DirectoryCheckpointer has saved.",
)
@STEP
@RANK
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def export(
    path: str, out: pathlib.Path, form: Format, step: int | None, rank: int, force: bool
) -> None:
    """Write the whole state to OUT in a format that others read."""
    run.exit_on_sigterm()
    state = _open_checkpoint(locate(path), step, rank)
    write(state, form, out, force=force)
    click.echo(f"{out}: {tables.format_summary(state)}")
    if state.rank_local and state.manifest.world_size > 1:
        click.echo(tables.format_rank_local_note(state), err=True)


@checkpoint.command("rm")
@PATH
@click.argument("steps", nargs=-1)
@click.option("--force", is_flag=True, help="Even the newest good one, or an unfinished one.")
def remove(path: str, steps: tuple[str, ...], force: bool) -> None:
    """Remove checkpoints by step or by the folder's name; a checkpoint's own PATH needs no STEPS.

    Refused without --force: the newest good one, all that is left, and what has no manifest, since
    a job may be writing it.
    """
    place = locate(path)
    words = [absolute_location(step) if "/" in step else step for step in steps]
    if place.selected:
        words.append(place.selected.name)
    if not words:
        raise errors.InputError("name what to remove: steps such as 100, or names of folders")
    folders = place.storage.folders()
    doomed = checkpoint_tools_listing.select_folders(folders, words)
    if not force:
        _check_removal(place, folders, doomed)
    for folder in doomed:
        place.storage.remove(folder)
        click.echo(f"{folder.location} removed")


def _check_removal(
    location: CheckpointLocation,
    folders: Sequence[CheckpointFolder],
    to_delete: Sequence[CheckpointFolder],
) -> None:
    """Make sure that the job has a good one left."""
    by_name = {folder.name: folder for folder in folders}
    objection = checkpoint_tools_listing.deletion_block(
        tuple(inspect_folders(location.storage, folders)),
        {folder.name for folder in to_delete},
        lambda name: _is_intact_folder(location, by_name[name]),
    )
    if objection:
        raise errors.InputError(f"{objection}; nothing was removed. --force removes it")


def _is_intact_folder(location: CheckpointLocation, folder: CheckpointFolder) -> bool:
    found = verify_checkpoint(location.storage, folder)
    if found.is_unreadable:
        problem = next(file.problem for file in found.files if file.problem)
        raise errors.StorageError(f"{problem}; nothing was removed")
    return found.is_intact


def _open_checkpoint(
    location: CheckpointLocation, step: int | None, rank: int
) -> ConsolidatedState:
    return open_state(location.storage, location.checkpoint(step), rank)


def _print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=2, allow_nan=False))

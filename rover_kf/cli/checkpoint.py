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
from rover_kf.checkpoint.format.manifest import Folder
from rover_kf.checkpoint_tools import listing as checkpoint_tools_listing
from rover_kf.checkpoint_tools.consolidated_state import WholeState, open_state
from rover_kf.checkpoint_tools.diff import Difference, differences
from rover_kf.checkpoint_tools.export import Format
from rover_kf.checkpoint_tools.export import export as write
from rover_kf.checkpoint_tools.listing import listing
from rover_kf.checkpoint_tools.locate import Place, absolute, locate
from rover_kf.checkpoint_tools.verify import Checked, check
from rover_kf.cli import checkpoint_tables as tables
from rover_kf.cli import foreground_job, output

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
def list_checkpoints(path: str, as_json: bool) -> None:  # noqa: FBT001 - click passes flags so
    """List checkpoints: what they are, or what is wrong with them."""
    place = locate(path)
    found = tuple(listing(place.storage, place.folders()))
    if not found:
        click.echo(f"{path} holds no checkpoint; PATH is <checkpoint.path>/<job>", err=True)
    if as_json:
        _print_json([{**codec.encode(item), "whole": not item.problem} for item in found])
    else:
        output.show(tables.listed(found, time.time()))


@checkpoint.command()
@PATH
@STEP
@RANK
@JSON
def show(path: str, step: int | None, rank: int, as_json: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Show what a checkpoint holds, put together from all its files."""
    state = _open(locate(path), step, rank)
    if as_json:
        _print_json(tables.described(state))
        return
    output.show(*tables.shown(state))


@checkpoint.command()
@PATH
@click.option("--step", type=int, help="Only this step of a job's folder.")
@JSON
def verify(path: str, step: int | None, as_json: bool) -> int:  # noqa: FBT001 - click passes flags so
    """Read every byte and compare the checksums; exit code 1 if not all could be read and is right.

    Folders without a manifest are no checkpoints: they are damage only if PATH or --step names one.
    """
    place = locate(path)
    folders = [folder for folder in place.folders() if step in (None, folder.step)]
    if not folders:
        which = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise errors.InputError(f"{path} holds {which}: there is nothing to verify")
    named = place.named is not None or step is not None
    found: list[Checked] = []
    for folder in folders:
        found.append(check(place.storage, folder))
        if not as_json:
            click.echo("\n".join(tables.verdict(found[-1])))
    if as_json:
        _print_json([{**codec.encode(item), "whole": item.whole} for item in found])
    return int(any(not item.whole and (named or not item.unfinished) for item in found))


@checkpoint.command()
@click.argument("a")
@click.argument("b")
@JSON
def diff(a: str, b: str, as_json: bool) -> int:  # noqa: FBT001 - click passes flags so
    """Compare two checkpoints bit by bit; exit code 0 if they are equal, 1 if not.

    Of a job's folder the newest whole checkpoint is taken. Ranks' own tensors are compared rank by
    rank, as far as both worlds have them.
    """
    left, right = (_open(locate(path), None, 0) for path in (a, b))
    found: list[Difference] = []
    for difference in differences(left, right):
        found.append(difference)
        if not as_json:
            click.echo(tables.difference(difference))
    if as_json:
        _print_json({"equal": not found, "differences": codec.encode(tuple(found))})
    else:
        click.echo(tables.comparison(left, right, len(found)))
    return 1 if found else 0


@checkpoint.command()
@PATH
@click.argument("out", type=click.Path(path_type=pathlib.Path))
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
def export(  # noqa: PLR0917 - click passes options by name
    path: str,
    out: pathlib.Path,
    form: Format,
    step: int | None,
    rank: int,
    force: bool,  # noqa: FBT001 - click passes flags so
) -> None:
    """Write the whole state to OUT in a format that others read."""
    foreground_job.end_on_sigterm()
    state = _open(locate(path), step, rank)
    write(state, form, out, force=force)
    click.echo(f"{out}: {tables.summary(state)}")
    if state.own and state.manifest.world_size > 1:
        click.echo(tables.own_note(state), err=True)


@checkpoint.command("rm")
@PATH
@click.argument("steps", nargs=-1)
@click.option("--force", is_flag=True, help="Even the newest good one, or an unfinished one.")
def remove(path: str, steps: tuple[str, ...], force: bool) -> None:  # noqa: FBT001 - click passes flags so
    """Remove checkpoints by step or by the folder's name; a checkpoint's own PATH needs no STEPS.

    Refused without --force: the newest good one, all that is left, and what has no manifest, since
    a job may be writing it.
    """
    place = locate(path)
    words = [absolute(step) if "/" in step else step for step in steps]
    if place.named:
        words.append(place.named.name)
    if not words:
        raise errors.InputError("name what to remove: steps such as 100, or names of folders")
    folders = place.storage.folders()
    doomed = checkpoint_tools_listing.chosen(folders, words)
    if not force:
        _check_removal(place, folders, doomed)
    for folder in doomed:
        place.storage.remove(folder)
        click.echo(f"{folder.location} removed")


def _check_removal(place: Place, folders: Sequence[Folder], doomed: Sequence[Folder]) -> None:
    """Make sure that the job has a good one left."""
    by_name = {folder.name: folder for folder in folders}
    objection = checkpoint_tools_listing.objection(
        tuple(listing(place.storage, folders)),
        {folder.name for folder in doomed},
        lambda name: _is_whole(place, by_name[name]),
    )
    if objection:
        raise errors.InputError(f"{objection}; nothing was removed. --force removes it")


def _is_whole(place: Place, folder: Folder) -> bool:
    found = check(place.storage, folder)
    if found.unread:
        problem = next(file.problem for file in found.files if file.problem)
        raise errors.StorageFailed(f"{problem}; nothing was removed")
    return found.whole


def _open(place: Place, step: int | None, rank: int) -> WholeState:
    return open_state(place.storage, place.checkpoint(step), rank)


def _print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=2, allow_nan=False))


VERBS = (checkpoint,)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's manifest with further arguments for its script: a trial of a sweep; pure."""

from __future__ import annotations

import itertools
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rover_kf import errors
from rover_kf.api.jobs import Manifest
from rover_kf.injection import adapters
from rover_kf.injection.inject import is_injected

_SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
_INLINE_SCRIPT = re.compile("-[a-z]*c")


def add_arguments(manifest: Manifest, arguments: str) -> Manifest:
    """The manifest whose script gets these arguments after its own.

    Args:
        manifest: of the job, not patched yet.
        arguments: as a shell would split them, such as ``--lr 0.1 --name 'a b'``.

    Raises:
        InputError: the manifest is patched, has no command to add to or a shell's, or a quote is
            open.
    """
    if is_injected(manifest):
        raise errors.InputError("the manifest is patched already: vary it before it is patched")
    try:
        words = shlex.split(arguments)
    except ValueError as cause:
        raise errors.InputError(f"arguments are {arguments!r}: {cause}") from cause
    adapter = adapters.adapter_for(manifest)
    specs = dict(manifest["spec"][adapter.specs])
    for replica in adapter.replicas(manifest):
        template = replica.spec["template"]
        containers = [
            _extend_command(one, words) if one["name"] == adapter.container else one
            for one in template["spec"]["containers"]
        ]
        pod = {**template["spec"], "containers": containers}
        specs[replica.key] = {**replica.spec, "template": {**template, "spec": pod}}
    return {**manifest, "spec": {**manifest["spec"], adapter.specs: specs}}


def _extend_command(container: Mapping[str, Any], words: list[str]) -> dict[str, Any]:
    key = "args" if container.get("args") else "command"
    if not container.get(key):
        raise errors.InputError(
            "the trainer's container states no command, so there is nothing to add arguments to"
        )
    if words:
        _check_shell([*(container.get("command") or ()), *(container.get("args") or ())])
    return {**container, key: [*container[key], *words]}


def _check_shell(line: Sequence[str]) -> None:
    """Refuse a shell's ``-c``: what is added would be the shell's own arguments, not the script's.

    A text that names them passes them on.
    """
    options = itertools.takewhile(lambda word: word.startswith("-"), line[1:])
    takes_text = posixpath.basename(line[0]) in _SHELLS and any(
        map(_INLINE_SCRIPT.fullmatch, options)
    )
    if takes_text and not any("$@" in word or "$*" in word for word in line):
        raise errors.InputError(
            f"the trainer's container runs a line of {line[0]}'s, which passes no arguments on to "
            "the script: write the command as a list that begins with torchrun or python"
        )

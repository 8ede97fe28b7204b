# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How a job is called, on the command line and in Python: its name, or ``tfjob/NAME``."""

from __future__ import annotations

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.jobs import JobKey

_KINDS = {
    "": names.PYTORCHJOB,
    "pytorchjob": names.PYTORCHJOB,
    names.PYTORCHJOBS: names.PYTORCHJOB,
    "tfjob": names.TFJOB,
    names.TFJOBS: names.TFJOB,
}


def parse_name(namespace: str, text: str) -> JobKey:
    """The job that is called so, as kubectl does: ``KIND/NAME``, or a PyTorchJob's name alone.

    Raises:
        InputError: there is no such kind.
    """
    kind, _, name = text.rpartition("/")
    if kind.lower() not in _KINDS or not name:
        message = f"{text!r} calls no job; give NAME, pytorchjob/NAME or tfjob/NAME"
        raise errors.InputError(message)
    return JobKey(namespace, name, _KINDS[kind.lower()])


def to_key(key: JobKey | str) -> JobKey:
    """``NAME`` (a PyTorchJob) or ``tfjob/NAME`` is in the namespace ``default``.

    Raises:
        InputError: there is no such kind.
    """
    return key if isinstance(key, JobKey) else parse_name("default", key)


def format_name(key: JobKey) -> str:
    """What to call a job."""
    return key.name if key.kind == names.PYTORCHJOB else f"{key.kind.lower()}/{key.name}"

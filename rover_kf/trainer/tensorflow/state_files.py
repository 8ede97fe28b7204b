# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who writes TensorFlow's files of a state: one process, or each parameter server its own."""

from __future__ import annotations

import functools
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import Held, HeldRequest
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.sidecar_client import Link
from rover_kf.trainer.tensorflow.chief_files import ChiefFiles
from rover_kf.trainer.tensorflow.part_folders import Parts, PartSweep
from rover_kf.trainer.tensorflow.server_files import ServerFiles
from rover_kf.trainer.tensorflow.session_state import SessionState
from rover_kf.trainer.tensorflow.tf_config import TfConfig

_HELD_SECONDS = 60.0


def of(checkpoint: Any, told: TfConfig | None, known: TrainerSettings) -> ChiefFiles | ServerFiles:
    """As the job says.

    Args:
        checkpoint: what is saved.
        told: of the cluster; None: this process is alone.
        known: of this process.

    Raises:
        InputError: servers shall write, and there are none that could.
    """
    through = ChiefFiles(checkpoint, told.files_device if told is not None else None)
    if known.shards is None:
        return through
    if told is None or not told.servers or isinstance(checkpoint, SessionState):
        raise errors.InputError(
            f"{names.ENV_CHECKPOINT_SHARDS} is {known.shards}, and there is no parameter server of "
            f"ParameterServerStrategy that could write there; remove {names.PREFIX}"
            "checkpoint.shards from the job"
        )
    parts, home = Parts(known.shards, known.round), known.home
    sweep = PartSweep(parts, functools.partial(_held, Link(home), known)) if home else None
    return ServerFiles(through, parts, told.servers, sweep)


def _held(link: Link, known: TrainerSettings) -> tuple[int, ...]:
    """Steps that could still be restored."""
    asked = HeldRequest(known.local_rank)
    return link.ask(names.PATH_HELD, asked, Held, timeout=_HELD_SECONDS).steps

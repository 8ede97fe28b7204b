# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Who writes TensorFlow's files of a state: one process, or each parameter server its own."""

from __future__ import annotations

import functools
from typing import Any

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import RestorableStepsReply, RestorableStepsRequest
from rover_kf.trainer.settings import TrainerSettings
from rover_kf.trainer.sidecar_client import SidecarClient
from rover_kf.trainer.tensorflow.chief_files import ChiefFiles
from rover_kf.trainer.tensorflow.part_folders import SaveFolderGc, SaveFolders
from rover_kf.trainer.tensorflow.server_files import ServerFiles
from rover_kf.trainer.tensorflow.session_state import SessionState
from rover_kf.trainer.tensorflow.tf_config import TfConfig

_HELD_SECONDS = 60.0


def choose_writer(
    checkpoint: Any, config: TfConfig | None, settings: TrainerSettings
) -> ChiefFiles | ServerFiles:
    """Return what writes the files, as the job requires; ``config`` None: one process alone.

    Raises:
        InputError: servers shall write, and there are none that could.
    """
    through = ChiefFiles(checkpoint, config.files_device if config is not None else None)
    if settings.shards is None:
        return through
    if config is None or not config.servers or isinstance(checkpoint, SessionState):
        raise errors.InputError(
            f"{names.ENV_CHECKPOINT_SHARDS} is {settings.shards}, and there is no "
            "parameter server of "
            f"ParameterServerStrategy that could write there; remove {names.PREFIX}"
            "checkpoint.shards from the job"
        )
    parts, home = SaveFolders(settings.shards, settings.round), settings.shared_dir
    sweep = (
        SaveFolderGc(parts, functools.partial(_restorable_steps, SidecarClient(home), settings))
        if home
        else None
    )
    return ServerFiles(through, parts, config.servers, sweep)


def _restorable_steps(sidecar: SidecarClient, settings: TrainerSettings) -> tuple[int, ...]:
    """Steps that could still be restored."""
    asked = RestorableStepsRequest(settings.local_rank)
    return sidecar.request(
        names.PATH_HELD, asked, RestorableStepsReply, timeout=_HELD_SECONDS
    ).steps

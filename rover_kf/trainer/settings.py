# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a training process is told by its environment: torchrun's variables and rover-kf's."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.states import RoundId

_log = logging.getLogger("rover_kf")


class InactiveNotice:
    """One a checkpointer."""

    def __init__(self) -> None:
        self._said = False

    def warn_once(self) -> None:
        """Why nothing is saved, and what to do."""
        if not self._said:
            _log.warning(
                "rover-kf: %s is not set, so nothing is saved; start the script by rover-kf train, "
                "or in a job that rover-kf has patched, to get checkpoints",
                names.ENV_HOME,
            )
        self._said = True


_DEFAULT_EVERY = 50


@dataclasses.dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Of one training process."""

    shared_dir: pathlib.Path | None
    """Mount path of the shared volume; None: the process runs outside rover-kf."""
    every: int
    """Steps between two saves."""
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    round: int = 0
    """Number of the rendezvous round that started this process; 0: no launcher has."""
    generation: int = 0
    """Of the coordinator that started the round."""
    local_world_size: int = 1
    """Training processes of this pod, which share its cores."""
    resting: pathlib.Path | None = None
    """Where processes that torchrun has started mark that they have saved and left the world."""
    shards: pathlib.Path | None = None
    """The job's folder that its parameter servers write their variables to; None: they do not."""
    launcher: int = 0
    """Process number of what all training processes of this pod descend from; 0: there is none."""

    @property
    def round_id(self) -> RoundId:
        """The round that started this process."""
        return RoundId(self.generation, self.round)


def read(environment: Mapping[str, str] | None = None) -> TrainerSettings:
    """Read the settings from the environment, the process's own by default.

    Raises:
        InputError: a variable is not what it should be; the message names it.
    """
    given = os.environ if environment is None else environment
    home = given.get(names.ENV_HOME, "")
    every = _number(given, names.ENV_CHECKPOINT_EVERY, _DEFAULT_EVERY)
    if every < 1:
        raise errors.InputError(f"{names.ENV_CHECKPOINT_EVERY} is {every}; 1 or more is needed")
    return TrainerSettings(
        shared_dir=pathlib.Path(home) if home else None,
        every=every,
        rank=_number(given, "RANK", 0),
        local_rank=_number(given, "LOCAL_RANK", 0),
        world_size=_number(given, "WORLD_SIZE", 1),
        round=_number(given, names.ENV_ROUND, 0),
        generation=_number(given, names.ENV_GENERATION, 0),
        local_world_size=_number(given, "LOCAL_WORLD_SIZE", 1),
        resting=_path(given, names.ENV_RESTING),
        shards=_path(given, names.ENV_CHECKPOINT_SHARDS),
        launcher=_number(given, names.ENV_LAUNCHER, 0),
    )


def _path(environment: Mapping[str, str], name: str) -> pathlib.Path | None:
    value = environment.get(name)
    return pathlib.Path(value) if value else None


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name) or str(default)
    try:
        return int(value)
    except ValueError as cause:
        raise errors.InputError(f"{name} is {value!r}; a whole number is needed") from cause

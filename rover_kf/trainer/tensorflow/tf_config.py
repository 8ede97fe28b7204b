# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""TF_CONFIG as the Training Operator writes it: the cluster, and which of its tasks this is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from rover_kf import errors

VARIABLE = "TF_CONFIG"
SERVERS = frozenset({"ps", "worker"})
"""Tasks that serve the chief's program where there are parameter servers."""


@dataclasses.dataclass(frozen=True, slots=True)
class TfConfig:
    """The cluster as one TensorFlow process sees it."""

    tasks: frozenset[str]
    """Types of task that the cluster has: ``chief``, ``worker``, ``ps``."""
    task: str
    """This process's type."""
    index: int
    workers: int = 0
    """Of the cluster."""
    servers: int = 0

    @property
    def serves(self) -> bool:
        """Whether this process is a server that a chief's program drives."""
        return "ps" in self.tasks and self.task in SERVERS

    @property
    def files_device(self) -> str | None:
        """The device whose process writes and reads all files of a checkpoint.

        None: each process its own. With parameter servers it is this very process, since they share
        no folder with it.
        """
        if "ps" not in self.tasks:
            return None
        return f"/job:{self.task}/replica:0/task:{self.index}/device:CPU:0"


def read(environment: Mapping[str, str], world_size: int) -> TfConfig | None:
    """Read TF_CONFIG; None in a world of one process without it.

    Raises:
        InputError: it is missing or cannot be read.
    """
    text = environment.get(VARIABLE, "")
    if not text and world_size == 1:
        return None
    if not text:
        raise errors.InputError(
            f"{VARIABLE} is not set, and there are {world_size} processes; the Training Operator "
            "sets it in the container tensorflow of a TFJob, so that each finds the others"
        )
    try:
        parsed = json.loads(text)
        tasks, task = parsed["cluster"], parsed["task"]
        workers = len(tasks.get("worker") or ())
        servers = len(tasks.get("ps") or ())
        kinds = frozenset(map(str, tasks))
        return TfConfig(kinds, str(task["type"]), int(task["index"]), workers, servers)
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise errors.InputError(
            f"{VARIABLE} is {text[:200]!r}; JSON with cluster and task (type, index) is needed, as "
            "the Training Operator writes it"
        ) from cause

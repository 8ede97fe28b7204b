# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster of a TFJob whose workers come and go (``enableDynamicWorker``).

The operator's TF_CONFIG names to each process little more than itself there. rover-kf's variable
has the addresses of all processes that the job may ever have. A parameter server is started with
all of them, so that it finds workers that come later; the chief and each worker are clients of
their own, and know the servers and themselves alone, so that they wait for nobody else.

::

    place = dynamic_cluster.read()
    server = tf.distribute.Server(place.cluster, job_name=place.task, task_index=place.index)
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping

from rover_kf import errors
from rover_kf.api import names
from rover_kf.trainer.tensorflow import tf_config


@dataclasses.dataclass(frozen=True, slots=True)
class DynamicCluster:
    """The cluster as one process has to know it."""

    task: str
    """``chief``, ``worker`` or ``ps``."""
    index: int
    cluster: Mapping[str, Mapping[int, str]]
    """Addresses that this process has to know, as tf.train.ClusterSpec takes them."""

    @property
    def servers(self) -> int:
        """Parameter servers."""
        return len(self.cluster["ps"])

    @property
    def device(self) -> str:
        """Of this process' own operations."""
        return f"/job:{self.task}/task:{self.index}"

    @property
    def filters(self) -> tuple[str, str]:
        """Of a session (``ConfigProto.device_filters``): it waits for no other worker."""
        return ("/job:ps", self.device)


def read(environment: Mapping[str, str] | None = None) -> DynamicCluster:
    """Read the cluster from the environment, the process's own by default.

    Raises:
        InputError: it is missing or cannot be read.
    """
    given = os.environ if environment is None else environment
    told = tf_config.read(given, 2)
    text = given.get(names.ENV_TF_CLUSTER, "")
    if not text or told is None:
        raise errors.InputError(
            f"{names.ENV_TF_CLUSTER} is not set: rover-kf sets it in a labelled TFJob with "
            "spec.enableDynamicWorker: true, where workers come and go"
        )
    try:
        found = {kind: dict(enumerate(map(str, a))) for kind, a in json.loads(text).items()}
        own = found[told.task][told.index]
        servers = found["ps"]
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise errors.InputError(
            f"{names.ENV_TF_CLUSTER} is {text[:200]!r}, and this process is {told.task} "
            f"{told.index}; JSON with the addresses of chief, ps and worker is needed"
        ) from cause
    known = found if told.task == "ps" else {"ps": servers, told.task: {told.index: own}}
    return DynamicCluster(told.task, told.index, known)

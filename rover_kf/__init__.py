# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Elastic, fault-tolerant training for plain Kubeflow.

Public names resolve on first use: the runtime inside a user's image holds only the standard
library and torch, so nothing may be imported here that needs more.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rover_kf.api.decisions import Quantity as Quantity
    from rover_kf.api.decisions import Recommendation as Recommendation
    from rover_kf.api.decisions import ScaleDecision as ScaleDecision
    from rover_kf.api.jobs import JobKey as JobKey
    from rover_kf.client import RoverClient as RoverClient
    from rover_kf.datasets.tables import TableRows as TableRows
    from rover_kf.errors import RoverError as RoverError
    from rover_kf.injection.policy.rover_policy import RoverPolicy as RoverPolicy
    from rover_kf.trainer.checkpointer import Checkpointer as Checkpointer
    from rover_kf.trainer.data.elastic_loader import ElasticDataLoader as ElasticDataLoader
    from rover_kf.trainer.data.elastic_sampler import ElasticSampler as ElasticSampler
    from rover_kf.trainer.data.kafka.dataset import KafkaDataset as KafkaDataset
    from rover_kf.trainer.data.sharded_dataset import ShardedDataset as ShardedDataset
    from rover_kf.trainer.directory import DirectoryCheckpointer as DirectoryCheckpointer

__version__ = "0.1.0"

_HOMES = {
    "Checkpointer": "rover_kf.trainer.checkpointer",
    "DirectoryCheckpointer": "rover_kf.trainer.directory",
    "ElasticDataLoader": "rover_kf.trainer.data.elastic_loader",
    "ElasticSampler": "rover_kf.trainer.data.elastic_sampler",
    "JobKey": "rover_kf.api.jobs",
    "KafkaDataset": "rover_kf.trainer.data.kafka.dataset",
    "Quantity": "rover_kf.api.decisions",
    "Recommendation": "rover_kf.api.decisions",
    "RoverClient": "rover_kf.client",
    "RoverError": "rover_kf.errors",
    "RoverPolicy": "rover_kf.injection.policy.rover_policy",
    "TableRows": "rover_kf.datasets.tables",
    "ScaleDecision": "rover_kf.api.decisions",
    "ShardedDataset": "rover_kf.trainer.data.sharded_dataset",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - computed from the table above so that they cannot differ


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    message = f"module 'rover_kf' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of whose state each rank has a part, and nothing says which: refused.

They are told by their names: a script that has not loaded them need not wait for the import.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from rover_kf import errors


def state_dict_of(value: Any) -> Any:
    """What an object gives to be saved.

    Raises:
        UnsupportedState: it is torch's optimizer that gathers its state on one rank alone.
    """
    if type(value).__name__ == "ZeroRedundancyOptimizer":
        raise errors.UnsupportedState(
            "each rank has a part of a ZeroRedundancyOptimizer's state, and no rank can have all "
            "of it; shard by FSDP2 (fully_shard), or give the state an object whose state_dict and "
            "load_state_dict are those of optimizer.optim, with Checkpointer(replicated=False): "
            "each rank's part then comes back to it in a world of the same size"
        )
    return value.state_dict()


def reject_sharded_optimizer(path: str, parameters: Iterable[torch.Tensor]) -> None:
    """Make sure that an optimizer's state is the same on every rank, or lies as DTensors do.

    Raises:
        UnsupportedState: its parameters are parts that FSDP's version 1 has cut; the message has
            the optimizer's path.
    """
    if any(getattr(parameter, "_fsdp_flattened", False) for parameter in parameters):
        raise errors.UnsupportedState(
            f"state{path} is an optimizer of FullyShardedDataParallel (FSDP's version 1), and each "
            "rank has a part of its state that has no name; shard by FSDP2 (fully_shard), save by "
            "torch.distributed.checkpoint (rover_kf.trainer.dcp), or say "
            "Checkpointer(replicated=False): each rank's part then comes back to it in a world of "
            "the same size"
        )

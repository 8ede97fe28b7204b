# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What optimizers have yet to make at their first step, so that slots need not grow then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from rover_kf.trainer.state.traverse import iter_instances

_ENTRY_BYTES = 1024
"""Of a small tensor with its name, in the header and in the tree."""


def pending_optimizer_bytes(state: Mapping[str, object]) -> int:
    """An estimate, rather too large: moments as large as the parameters that have none yet.

    Args:
        state: freshly built or restored.
    """
    found = 0
    for optimizer in iter_instances(state, Optimizer):
        for group in optimizer.param_groups:
            count = _moments(group)
            for parameter in group["params"]:
                if count and not optimizer.state.get(parameter):
                    to_local = getattr(parameter, "to_local", None)
                    local: torch.Tensor = to_local() if to_local is not None else parameter
                    found += count * (local.numel() * local.element_size() + _ENTRY_BYTES)
                    found += _ENTRY_BYTES  # a counter of steps
    return found


def _moments(group: Mapping[str, Any]) -> int:
    """Tensors of the parameter's size that a step will make, by what the group is told."""
    if "betas" in group:
        return 3 if group.get("amsgrad") else 2
    averages = sum(1 for key in ("alpha", "rho") if key in group) + bool(group.get("centered"))
    return averages + bool(group.get("momentum"))

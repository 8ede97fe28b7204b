# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A process group and a device mesh of this process alone: DTensors without other ranks."""

from __future__ import annotations

import contextlib
import gc

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh


@contextlib.contextmanager
def own_group():
    """A process group of this process, while it lasts."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        gc.collect()  # what it left in cycles, which ends badly in a worker that a loader forks


@contextlib.contextmanager
def own_mesh():
    """A mesh over that group, while it lasts."""
    with own_group():
        yield init_device_mesh("cpu", (1,))

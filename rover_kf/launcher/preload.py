# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the zygote loads before it forks training processes, so that none of them pays for it.

torch stays single-threaded when it is loaded. TensorFlow starts threads, which no fork has; so its
processes are forked from a bare Python and load it themselves.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Mapping

from rover_kf.api import names

TF_CONFIG = "TF_CONFIG"
"""The Training Operator's word to TensorFlow's processes: the cluster, and which of it this is."""
_TORCH = ("torch.distributed", "torch.nn.parallel", "torch.utils.data")
"""What nearly every training script imports."""
_LATE = ("torch._dynamo", "rover_kf.trainer.checkpointer")
"""What a script loads after its first lines, so that every restarted process would pay for it.
DistributedDataParallel loads the first when it is made, which takes as long as torch itself. None
of them starts a thread."""
_BARE = ("rover_kf.trainer.tensorflow",)


def has_torch(environment: Mapping[str, str]) -> bool:
    """Whether training processes are torch's.

    Args:
        environment: that they inherit.
    """
    return TF_CONFIG not in environment and importlib.util.find_spec("torch") is not None


def load(environment: Mapping[str, str]) -> None:
    """Load it.

    Args:
        environment: that training processes inherit.

    Raises:
        ImportError: torch is there and cannot be loaded.
    """
    if environment.get(names.ENV_PRELOAD) == "off":
        return
    torch = has_torch(environment)
    for name in _TORCH if torch else ():
        importlib.import_module(name)
    for name in _LATE if torch else _BARE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

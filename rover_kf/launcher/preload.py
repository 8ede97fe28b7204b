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
REST_SHARE = 0.75
"""Of torch's own time, what the rest of it was seen to take: 0.55 to 0.75."""
_BARE = ("rover_kf.trainer.tensorflow",)


def has_torch(environment: Mapping[str, str]) -> bool:
    """Return whether training processes with this environment are torch's."""
    return TF_CONFIG not in environment and importlib.util.find_spec("torch") is not None


def load_first(environment: Mapping[str, str]) -> None:
    """Load what a store needs as well.

    Raises:
        ImportError: torch is there and cannot be loaded.
    """
    if environment.get(names.ENV_PRELOAD) != "off" and has_torch(environment):
        for name in _TORCH:
            importlib.import_module(name)


def load_rest(environment: Mapping[str, str]) -> None:
    """Load what training processes alone need."""
    if environment.get(names.ENV_PRELOAD) == "off":
        return
    for name in _LATE if has_torch(environment) else _BARE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def rest_seconds(first_seconds: float) -> float:
    """How long the rest will take, by what the first took a moment ago on the same machine."""
    return REST_SHARE * first_seconds

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The Reducer of a DistributedDataParallel module: its bucket layout read, and given to it.

DDP sums its first gradients in a layout that follows the definition of the parameters.
The next forward pass rebuilds the buckets in the order in which the gradients came.
gloo sums an element in an order of ranks that depends on its position in the bucket.
So a new process has to begin with the rebuilt buckets, or three ranks compute other bits.

torch has no public way to do either; ``missing`` names the private ways that a torch lacks.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rover_kf.trainer.ddp.bucket_layout import BucketLayout
from rover_kf.trainer.state.compiled_modules import strip_compile_prefix

_log = logging.getLogger("rover_kf")

_INDICES = "rebuilt_per_bucket_param_indices"
"""Key of DDP's own statistics: ``5 4, 3 2 1 0``."""

_MODULE_WAYS = (
    "_build_params_for_reducer",
    "_build_debug_param_to_name_mapping",
    "_ddp_init_helper",
    "_get_ddp_logging_data",
)
_REDUCER_WAYS = ("_rebuild_buckets", "_push_all_rebuilt_params")


_known: weakref.WeakKeyDictionary[DistributedDataParallel, BucketLayout]
_known = weakref.WeakKeyDictionary()
"""Rebuilt layouts; torch's own record of one that was given has the new Reducer's numbering."""


def rebuilds(module: DistributedDataParallel) -> bool:
    """Whether the module leaves the layout that each process begins with, and torch shows it."""
    given: Any = module
    changes = given.static_graph or not given.find_unused_parameters
    return bool(_has_buckets(module) and changes and not missing(module))


def missing(module: DistributedDataParallel) -> str:
    """Return the private ways of torch that the module's buckets need and this torch lacks."""
    if not _has_buckets(module):
        return ""
    lacking = [name for name in _MODULE_WAYS if not hasattr(module, name)]
    lacking += [name for name in _REDUCER_WAYS if not hasattr(module.reducer, name)]
    return f"torch {torch.__version__} has no {', '.join(lacking)}" if lacking else ""


def _has_buckets(module: DistributedDataParallel) -> bool:
    """Whether a Reducer of C++ sums its gradients."""
    given: Any = module
    reducer = getattr(given, "reducer", None)
    return reducer is not None and not getattr(given, "_use_python_reducer", False)


def obstacle(module: DistributedDataParallel) -> str:
    """Return the reason why the Reducer of a module that rebuilds cannot be replaced, or ``""``."""
    given: Any = module
    if getattr(given, "mixed_precision", None) is not None:
        return "it has mixed_precision"
    if getattr(given, "_require_manual_backward_finalization", False):
        return "it finalizes the backward pass manually"
    if any(hasattr(each, "_in_backward_optimizers") for each in given.module.parameters()):
        return "its optimizers run in the backward pass"
    hooks = getattr(given, "_comm_hooks", [])
    if given._get_ddp_logging_data().get("comm_hook") and len(hooks) != 1:  # noqa: SLF001
        return "its communication hook is one of C++"
    return ""


def settle(module: DistributedDataParallel) -> None:
    """Rebuild the buckets as the next forward pass would; all ranks call it after a step.

    It broadcasts rank 0's order, once in the life of a module.
    """
    given: Any = module
    if module in _known:
        return
    if given._join_config.enable:  # noqa: SLF001 - ranks that have joined would miss the broadcast
        return
    try:
        rebuilt = given.reducer._rebuild_buckets()  # noqa: SLF001 - as DDP.forward does
    except RuntimeError as unfinished:  # The next forward pass raises it where the user sees it.
        _log.info("DistributedDataParallel's buckets cannot be rebuilt yet: %s", unfinished)
        return
    if rebuilt:
        given._has_rebuilt_buckets = True  # noqa: SLF001 - as DDP.forward does


def layout_of(module: DistributedDataParallel) -> BucketLayout | None:
    """Return the rebuilt layout, numbered as ``parameter_digest`` reads the parameters.

    Returns:
        None before the buckets are rebuilt.
    """
    known = _known.get(module)
    if known is None and (buckets := _recorded(module)):
        size = dist.get_world_size(module.process_group)
        known = _known[module] = BucketLayout(size, parameter_digest(module), buckets)
    return known


def _recorded(module: DistributedDataParallel) -> tuple[tuple[int, ...], ...]:
    """Return the rebuilt buckets from torch's record."""
    given: Any = module
    text = given._get_ddp_logging_data().get(_INDICES)  # noqa: SLF001 - the only record of it
    if not text:
        given.logger.set_runtime_stats_and_log()  # As DDP.forward does, one forward pass later.
        text = given._get_ddp_logging_data().get(_INDICES, "")  # noqa: SLF001
    return tuple(tuple(map(int, bucket.split())) for bucket in text.split(",") if bucket)


def parameter_digest(module: DistributedDataParallel) -> str:
    """Return a digest of the parameters that the Reducer has, in its order."""
    given: Any = module
    names = {
        id(parameter): strip_compile_prefix(name)
        for name, parameter in given.module.named_parameters()
    }
    parameters, _ = given._build_params_for_reducer()  # noqa: SLF001 - the order of the indices
    lines = (f"{names.get(id(each))} {tuple(each.shape)} {each.dtype}\n" for each in parameters)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def give_layout(module: DistributedDataParallel, layout: BucketLayout) -> None:
    """Replace the Reducer by one with these buckets; all ranks call it before a forward pass.

    The new Reducer has the parameters in the layout's order.
    It takes them for gradients that came in that order, and rebuilds its buckets for good.

    Args:
        module: that ``rebuilds``, without an ``obstacle``.
        layout: of the same parameters.
    """
    given: Any = module
    parameters, sparse = given._build_params_for_reducer()  # noqa: SLF001
    ordered = [parameters[index] for index in layout.order()]
    names = given._build_debug_param_to_name_mapping(ordered)  # noqa: SLF001
    expected = [sparse[index] for index in layout.order()]
    given._ddp_init_helper(ordered, expected, names, given.static_graph)  # noqa: SLF001
    if given.static_graph:
        given._static_graph_delay_allreduce_enqueued = False  # noqa: SLF001
        given.reducer._set_static_graph()  # noqa: SLF001
        given.logger._set_static_graph()  # noqa: SLF001
    for hook, state in getattr(given, "_comm_hooks", []):
        given.logger._set_comm_hook_name(hook.__qualname__)  # noqa: SLF001
        dist._register_comm_hook(given.reducer, state, hook)  # type: ignore[attr-defined] # noqa: SLF001
    given.reducer._push_all_rebuilt_params()  # noqa: SLF001
    given._has_rebuilt_buckets = given.reducer._rebuild_buckets()  # noqa: SLF001
    _known[module] = layout

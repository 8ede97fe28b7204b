# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The DistributedDataParallel modules of a process, and their layouts on the way to the next one.

A state often has the module inside the wrapper, or a framework hides the wrapper.
So the modules are found as they are built, by torch's hook on the registration of submodules.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from rover_kf.trainer.ddp import bucket_layout, reducer
from rover_kf.trainer.ddp.bucket_layout import BucketLayout
from rover_kf.trainer.state.flatten import unwrap
from rover_kf.trainer.state.traverse import iter_instances

_log = logging.getLogger("rover_kf")


class BucketTracker:
    """A keeper of the bucket layouts of one process's modules."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[DistributedDataParallel]] = []
        self._members: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        """Those whose parameters the last state has."""
        self._compared: tuple[list[int], list[int]] = ([], [])
        """Identities of that state's modules, and of the wrappers that there were."""
        self._restored: list[BucketLayout] = []
        """Those of the snapshot that no module has taken yet."""
        self._written: tuple[tuple[BucketLayout, ...], Mapping[str, str]] = ((), {})
        self._hook: RemovableHandle | None = None

    def start(self) -> None:
        """Find the modules that there are, and follow the ones to come."""
        if not dist.is_available():
            return
        if dist.is_initialized():
            self._modules = [weakref.ref(each) for each in _existing()]
        self._hook = register_module_module_registration_hook(self._on_registered)

    def close(self) -> None:
        """Follow no more modules."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def settle(self, state: Mapping[str, object]) -> None:
        """Rebuild the buckets that the next forward pass would rebuild; all ranks call it.

        Args:
            state: that is about to be saved.
        """
        for module in self._modules_of(state):
            reducer.settle(module)

    def metadata(self, state: Mapping[str, object]) -> Mapping[str, str]:
        """Return the layouts of the next step, for a snapshot of this state."""
        found = map(reducer.layout_of, self._modules_of(state))
        layouts = tuple(layout for layout in found if layout is not None)
        if layouts != self._written[0]:
            text = bucket_layout.to_text(layouts)
            self._written = layouts, {bucket_layout.KEY: text} if layouts else {}
        return self._written[1]

    def restore(self, metadata: Mapping[str, str], state: Mapping[str, object]) -> None:
        """Give the layouts of a snapshot to the state's modules; all ranks call it.

        A module that is built later gets its layout before its first forward pass.

        Raises:
            CorruptSnapshot: the layouts cannot be read.
        """
        self._restored = list(bucket_layout.read(metadata))
        for module in self._modules_of(state):
            self._give(module)

    def _modules_of(self, state: Mapping[str, object]) -> list[DistributedDataParallel]:
        """Return the wrappers of the state's modules that rebuild their buckets.

        A wrapper that the script has given up may live on in some ranks, and none of it may take
        part in a collective: of one module's wrappers the newest counts.
        """
        live = [module for each in self._modules if (module := each()) is not None]
        tops = [*iter_instances(state, torch.nn.Module)]
        compared = [*map(id, tops)], [*map(id, live)]
        if compared != self._compared:
            self._compared = compared
            self._find_members(tops, live)
        newest = {id(unwrap(module)): module for module in live if module in self._members}
        return [module for module in newest.values() if reducer.rebuilds(module)]

    def _find_members(
        self, tops: list[torch.nn.Module], live: list[DistributedDataParallel]
    ) -> None:
        own = {id(parameter) for top in tops for parameter in top.parameters()}
        found = [one for one in live if any(id(each) in own for each in one.parameters())]
        for module in found:
            if module not in self._members:
                _warn(reducer.missing(module))
        self._members = weakref.WeakSet(found)

    def _on_registered(self, module: torch.nn.Module, name: str, _: Any) -> None:
        # The wrapper's constructor has just begun: it has no Reducer yet.
        if name != "module" or not isinstance(module, DistributedDataParallel):
            return
        self._modules.append(weakref.ref(module))
        if self._restored:
            first = _FirstForward(self._give)
            # A compiled wrapper traces its hooks. DDP's constructor has imported the compiler.
            hook = torch.compiler.disable(first.run)  # type: ignore[no-untyped-call] # torch's
            first.handle = module.register_forward_pre_hook(hook)

    def _give(self, module: DistributedDataParallel) -> None:
        """Give a module the first layout that is of its parameters and ranks."""
        if not self._restored or not reducer.rebuilds(module):
            return
        same = (reducer.parameter_digest(module), dist.get_world_size(module.process_group))
        fitting = [one for one in self._restored if (one.parameters, one.world_size) == same]
        if not fitting:
            return
        layout = fitting[0]
        self._restored.remove(layout)
        if reducer.layout_of(module) == layout:
            return
        if reason := reducer.obstacle(module):
            _warn(reason)
            return
        with torch.inference_mode(mode=False):  # The buckets are for training outside of it.
            reducer.give_layout(module, layout)


def _warn(reason: str) -> None:
    if reason:
        _log.warning(
            "rover-kf: DistributedDataParallel begins each process with its own gradient buckets: "
            "%s; after a restart the sums of three or more ranks may differ in their last bits "
            "from those of an undisturbed run",
            reason,
        )


class _FirstForward:
    """A hook that runs before a module's first forward pass with gradients, and no more."""

    def __init__(self, give: Callable[[DistributedDataParallel], None]) -> None:
        self._give = give
        self.handle: RemovableHandle | None = None

    def run(self, module: DistributedDataParallel, _: Any) -> None:
        """Give the layout if this pass has gradients."""
        # As for DDP's own rebuild: a pass without gradients may be one rank's alone.
        if self.handle is not None and torch.is_grad_enabled():
            self.handle.remove()
            self.handle = None
            self._give(module)


def _existing() -> list[DistributedDataParallel]:
    """Return the modules that the process has, in the order of their construction."""
    kinds = {DistributedDataParallel, *_subclasses(DistributedDataParallel)}
    # By type: an instance check runs a proxy's own code, and takes longer.
    # The oldest generation has the modules that were built first.
    return [
        found
        for generation in (2, 1, 0)
        for found in gc.get_objects(generation)
        if type(found) in kinds
    ]


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The position in the data of Lightning's loop over batches, restored in another process.

Lightning restores loaders that have ``state_dict``. For others the epoch's order is drawn again
from the same random numbers, and used batches are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rover_kf import errors
from rover_kf.trainer.data.elastic_loader import ElasticDataLoader
from rover_kf.trainer.rng_state import Generators
from rover_kf.trainer.state.flatten import is_stateful


class DataOrder:
    """The random generators' states at the moments at which orders were drawn."""

    def __init__(self) -> None:
        self._begin: dict[str, Any] = {}
        """Before fit() asked for data loaders: they, and the first epoch's order, come from it."""
        self._epoch: dict[str, Any] | None = None
        """Before this epoch's order was drawn; None: it is the first one of a process."""
        self._drawn = False

    def begin(self, saved: dict[str, Any] | None) -> None:
        """Set the generators before the data loaders are made; None: nothing was saved."""
        if saved is None:
            self._begin = _export_rng_state()
            return
        self._begin, self._epoch = saved["begin"], saved["epoch"]
        _import_rng_state(self._begin)

    def state(self) -> dict[str, Any]:
        """Plain data, an entry of a Checkpointer's state."""
        return {"begin": self._begin, "epoch": self._epoch}

    def check(self, trainer: Any) -> None:
        """Make sure that used batches can be counted.

        Raises:
            UnsupportedState: they cannot; the message says why.
        """
        loaders = trainer.fit_loop._combined_loader.flattened  # noqa: SLF001 - the loop's own
        if hasattr(trainer.fit_loop._data_fetcher, "iterator_wrapper"):  # noqa: SLF001
            raise errors.UnsupportedState(
                "training_step takes dataloader_iter, and nobody counts what it takes from it; let "
                "it take batch and batch_idx"
            )
        if len({is_stateful(loader) for loader in loaders}) > 1:
            raise errors.UnsupportedState(
                "some data loaders have state_dict and some have not; give it to all or to none"
            )

    def draw(self, trainer: Any, start: Callable[[], None]) -> None:
        """Begin an epoch.

        ``start`` makes the iterator over its batches. The first epoch of a process has one already.
        """
        before = _export_rng_state(_loader_generators(trainer)) if self._drawn else None
        start()
        self._epoch, self._drawn = before, True

    def resume(self, trainer: Any, fetcher: Any) -> None:
        """Let the next batch be the one that the job was about to use."""
        loop, self._drawn = trainer.fit_loop, True
        used = loop.epoch_loop.batch_progress.current.ready
        if all(map(is_stateful, loop._combined_loader.flattened)):  # noqa: SLF001 - the loop's own
            if loop._combined_loader_states_to_load:  # noqa: SLF001 - made before states were there
                loop._load_combined_loader_states()  # noqa: SLF001
                for loader in loop._combined_loader.flattened:  # noqa: SLF001
                    if isinstance(loader, ElasticDataLoader):
                        loader.start_epoch()  # as Lightning did before the states were there
                iter(fetcher)
                fetcher.fetched += used
            return
        fetcher.fetched -= used
        if self._epoch is not None:
            _import_rng_state(self._epoch, _loader_generators(trainer))
            iter(fetcher)
        for _ in range(used):
            next(fetcher, None)  # with more ranks than before, an epoch may have fewer batches

    def end(self, trainer: Any) -> None:
        """Note the end of the last epoch."""
        self._epoch = _export_rng_state(_loader_generators(trainer))

    def samples(self, trainer: Any) -> int:
        """Return a rank's samples of an optimizer step; 0 if its loader has no batch size."""
        loader = trainer.fit_loop._combined_loader.flattened[0]  # noqa: SLF001 - the loop's own
        size = getattr(loader, "batch_size", None)
        return size * trainer.accumulate_grad_batches if isinstance(size, int) else 0


def _loader_generators(trainer: Any) -> list[torch.Generator]:
    found = []
    for loader in trainer.fit_loop._combined_loader.flattened:  # noqa: SLF001 - the loop's own
        sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        found += [getattr(holder, "generator", None) for holder in (loader, sampler)]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


def _export_rng_state(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """The random generators as plain data, without a device's: no data loader uses those."""
    found = Generators().state_dict()
    found.pop("cuda", None)
    loaders = [bytes(generator.get_state().tolist()) for generator in generators]
    return {**found, "torch": bytes(found["torch"].tolist()), "loaders": loaders}


def _import_rng_state(state: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    Generators().load_state_dict({**state, "torch": _tensor(state["torch"])})
    for generator, kept in zip(generators, state.get("loaders", ()), strict=False):
        generator.set_state(_tensor(kept))


def _tensor(kept: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(kept), dtype=torch.uint8)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The process's random generators as one value of a state: Python's, NumPy's, torch's, CUDA's.

::

    state = {"model": model, "optimizer": optimizer, "generators": Generators()}

Each rank gets its own back; in a world of another size rank r gets those of rank r modulo the old
size.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class Generators:
    """What ``Checkpointer`` saves and restores like a module; NumPy's only if it is imported."""

    def state_dict(self) -> dict[str, Any]:
        """Where all of them are."""
        found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if "numpy" in sys.modules:
            kind, keys, position, has_gauss, gauss = _numpy().get_state(legacy=True)
            found["numpy"] = (
                str(kind),
                keys.tobytes(),
                int(position),
                int(has_gauss),
                float(gauss),
            )
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # torch has no type of it
            found["cuda"] = torch.cuda.get_rng_state_all()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put all of them where they were; what was not saved stays."""
        random.setstate(state_dict["python"])
        torch.set_rng_state(state_dict["torch"])
        if "numpy" in state_dict and "numpy" in sys.modules:
            kind, keys, *rest = state_dict["numpy"]
            _numpy().set_state((kind, sys.modules["numpy"].frombuffer(keys, dtype="uint32"), *rest))
        here = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for device, saved in enumerate(state_dict.get("cuda", ())[:here]):
            torch.cuda.set_rng_state(saved, device)


class DeferredGenerators(Generators):
    """Generators that are set when told to: data loaders use some on their way to the next step."""

    def __init__(self) -> None:
        self._pending: dict[str, Any] | None = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it for ``apply``."""
        self._pending = state_dict

    def apply(self) -> None:
        """Set them, once."""
        held, self._pending = self._pending, None
        if held is not None:
            super().load_state_dict(held)


class EpochGenerators(DeferredGenerators):
    """These, and where they were when the epoch began: its order is drawn from them."""

    def __init__(self) -> None:
        super().__init__()
        self._begin: dict[str, Any] = {}
        self._replayed: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Where all of them are, and were."""
        return {**super().state_dict(), "epoch": self._begin}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it for ``begin`` and ``apply``."""
        self._replayed = state_dict.get("epoch", {})
        super().load_state_dict(state_dict)

    def begin(self) -> None:
        """Before the order of an epoch is drawn; after a restore, as it was drawn before."""
        again, self._replayed = self._replayed, {}
        if again:
            Generators().load_state_dict(again)
        self._begin = Generators().state_dict()

    def end(self) -> None:
        """An epoch is over; who trains on begins another one."""
        self._begin = Generators().state_dict()


def _numpy() -> Any:
    return sys.modules["numpy"].random

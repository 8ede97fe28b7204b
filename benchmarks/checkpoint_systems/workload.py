# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What every system saves, and the training loop that it saves it from.

Module and AdamW: of each parameter the value, two moments and a counter of steps.
"""

from __future__ import annotations

import time

import torch

from benchmarks.checkpoint_systems import shape

_MATRIX = 384


class Loop:
    """A training loop on one thread.

    Args:
        mebibytes: of the whole state.
        tensors: of the whole state.
        seed: of the values.
    """

    def __init__(self, mebibytes: int, tensors: int, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        count, size = shape.parameters(tensors), shape.elements(mebibytes, tensors)
        self.model = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.empty(size).uniform_(-1, 1)) for _ in range(count)]
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self._left = torch.rand(_MATRIX, _MATRIX)

    @property
    def state(self) -> dict[str, object]:
        """As a training script has it."""
        return {"model": self.model, "optimizer": self.optimizer}

    def dicts(self) -> dict[str, object]:
        """As those want it who save state dicts."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, found: dict[str, object]) -> None:
        """Bring state dicts back."""
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])

    def backward(self, milliseconds: float) -> None:
        """Compute for about so long; gradients are there then."""
        for parameter in self.model:
            if parameter.grad is None:
                parameter.grad = torch.full_like(parameter, 0.01)
        for _ in range(self._repetitions(milliseconds)):
            torch.mm(self._left, self._left)

    def step(self) -> float:
        """The optimizer's step; returns the milliseconds that it took."""
        begun = time.perf_counter()
        self.optimizer.step()
        return (time.perf_counter() - begun) * 1e3

    def tensors(self) -> list[torch.Tensor]:
        """All of the state, in one order."""
        found = [parameter.detach() for parameter in self.model]
        for parameter in self.model:
            kept = self.optimizer.state[parameter]
            found += [kept["step"], kept["exp_avg"], kept["exp_avg_sq"]]
        return found

    def _repetitions(self, milliseconds: float) -> int:
        if not hasattr(self, "_one"):
            samples = []
            for _ in range(20):
                begun = time.perf_counter()
                torch.mm(self._left, self._left)
                samples.append(time.perf_counter() - begun)
            self._one = min(samples) * 1e3
        return int(milliseconds / self._one)

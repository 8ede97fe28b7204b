# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A plain training script with many shapes: what the memory predictions are tried on."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import data

WIDTH, LENGTH, CLASSES = 512, 128, 100


class Synthetic(data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of a shape, made anew or held in memory."""

    def __init__(self, shape: tuple[int, ...], *, words: bool, held: int) -> None:
        self._shape, self._words = shape, words
        self._held = [self._make(i) for i in range(held)]

    def __len__(self) -> int:
        return len(self._held) or 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._held[index] if self._held else self._make(index)

    def _make(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(index)
        label = torch.randint(CLASSES, (), generator=draw)
        if self._words:
            return torch.randint(8000, self._shape, generator=draw), label
        return torch.randn(self._shape, generator=draw), label


class Sequence(nn.Module):
    """Words, some layers, the mean over the sequence."""

    def __init__(self, body: nn.Module, width: int, words: int) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(words, width), body
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        found = self.body(self.embed(words))
        return self.head((found[0] if isinstance(found, tuple) else found).mean(1))


def build(name: str) -> tuple[nn.Module, tuple[int, ...], bool]:
    """A model, its samples' shape, and whether they are words."""
    if name == "mlp":
        hidden = [layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(2048, CLASSES)), (2048,), False
    if name == "cnn":
        sizes = ((3, 32), (32, 64), (64, 128))
        layers = [
            layer
            for low, high in sizes
            for layer in (nn.Conv2d(low, high, 3, padding=1), nn.BatchNorm2d(high), nn.ReLU())
        ]
        last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))
        return nn.Sequential(*layers, *last), (3, 32, 32), False
    if name == "transformer":
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True)
        body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        return Sequence(body, WIDTH, 8000), (LENGTH,), True
    if name == "lstm":
        return Sequence(nn.LSTM(256, 256, 2, batch_first=True), 256, 8000), (LENGTH,), True
    return Sequence(nn.Linear(64, 64), 64, 1_000_000), (16,), True


def main() -> None:
    """Train for so many steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--optimizer", default="Adam")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--held", type=int, default=0, help="samples kept in memory")
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    model, shape, words = build(given.model)
    trained: nn.Module = model
    if world > 1:
        dist.init_process_group("gloo")
        trained = nn.parallel.DistributedDataParallel(model)
    optimizer = getattr(torch.optim, given.optimizer)(model.parameters(), lr=1e-3)
    samples = Synthetic(shape, words=words, held=given.held)
    loader = data.DataLoader(samples, given.batch, num_workers=given.workers)
    step = 0
    while step < given.steps:
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(trained(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == given.steps:
                break
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

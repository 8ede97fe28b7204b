# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Train a character-level GPT on the source text of Python's own standard library.

Runs as it is: ``python char_gpt.py``, ``torchrun --nproc-per-node 2 char_gpt.py``, or as the
command of a PyTorchJob. The lines marked "rover-kf" make it survive crashes and changes of size.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import sysconfig
import time

import torch
import torch.distributed as dist
from torch import nn

from rover_kf import Checkpointer

VOCABULARY, CONTEXT = 128, 64
TEXT_BYTES, HELD_OUT_BYTES = 1 << 20, 1 << 16


def read_text() -> torch.Tensor:
    """The first mebibyte of the standard library's modules, as ASCII codes."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = b""
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= TEXT_BYTES:
            break
    return torch.tensor(list(text[:TEXT_BYTES])).clamp(max=VOCABULARY - 1)


class Gpt(nn.Module):
    """A decoder of a few layers with learned positions."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits [batch, length, vocabulary] of the next character at each place."""
        length = text.shape[1]
        hidden = self.characters(text) + self.positions[:length]
        mask = self.mask[:length, :length]
        return self.head(self.layers(hidden, mask=mask, is_causal=True))


def loss_of(model: nn.Module, text: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """Cross entropy a character in nats, summed over the passages that begin there."""
    passages = torch.stack([text[begin : begin + CONTEXT + 1] for begin in begins.tolist()])
    logits = model(passages[:, :-1])
    flat = nn.functional.cross_entropy(
        logits.flatten(0, 1), passages[:, 1:].flatten(), reduction="sum"
    )
    return flat / CONTEXT


def batch_of(step: int, size: int, count: int, seed: int) -> torch.Tensor:
    """Where the passages of a step begin; depends on seed and step alone."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return torch.randint(count - CONTEXT - 1, (size,), generator=generator)


def parse_arguments(world_size: int) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps")
    parser.add_argument("--global-batch", type=int, default=32, help="passages a step, all ranks")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--samples-per-second", type=float, default=0.0, help="limit of each rank's input; 0: none"
    )
    parser.add_argument("--result", type=pathlib.Path, help="JSON file that rank 0 writes")
    given = parser.parse_args()
    if given.global_batch < world_size:
        parser.error(f"--global-batch {given.global_batch} is less than one passage a rank")
    return given


def main() -> None:
    """Train, then tell the loss on the text that was held out."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    given = parse_arguments(world_size)
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    text = read_text()
    train_text, held_out = text[:-HELD_OUT_BYTES], text[-HELD_OUT_BYTES:]

    model: nn.Module = Gpt(given.width, given.layers, heads=4)
    trained = model
    if world_size > 1:
        dist.init_process_group("gloo")
        trained = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=given.learning_rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loss": 0.0}
    checkpointer = Checkpointer()  # rover-kf, 1 of 3
    resumed = checkpointer.restore(state)  # rover-kf, 2 of 3
    print(f"rank {rank} of {world_size} starts after step {resumed}", flush=True)

    for step in range(resumed + 1, given.steps + 1):
        batch = batch_of(step, given.global_batch, len(train_text), given.seed)[rank::world_size]
        waited = len(batch) / given.samples_per_second if given.samples_per_second else 0.0
        time.sleep(waited)
        losses = loss_of(trained, train_text, batch)
        optimizer.zero_grad()
        # DDP averages over ranks; parts of unequal size must still weigh by their passages.
        (losses * world_size / given.global_batch).backward()
        optimizer.step()
        scheduler.step()
        state["loss"] = losses.item() / len(batch)
        checkpointer.step(  # rover-kf, 3 of 3
            step, state, samples=len(batch), wait_seconds=waited, total_steps=given.steps
        )
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {state['loss']:.4f}", flush=True)

    if rank == 0:
        begins = torch.arange(0, len(held_out) - CONTEXT - 1, CONTEXT)
        with torch.no_grad():
            parts = [loss_of(model.eval(), held_out, part) for part in begins.split(64)]
        held_out_loss = float(sum(parts)) / len(begins)
        result = {
            "held_out_loss": held_out_loss,
            "bits_per_character": held_out_loss / math.log(2),
            "steps": given.steps,
            "final_loss": state["loss"],
            "world_size": world_size,
            "parameters": sum(p.numel() for p in model.parameters()),
            "resumed_step": resumed,
            "restored_from": checkpointer.restored_from,
        }
        print(json.dumps(result), flush=True)
        if given.result:
            given.result.write_text(json.dumps(result))
    checkpointer.close()
    if world_size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Restore what there is, train a step, save it, wait until it is on storage; tell of it in JSON.

held_state.py SEED    of the values that the state has before it is restored
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch
from torch import nn

from rover_kf import Checkpointer

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.uint16, torch.uint32,
    torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn,
)  # fmt: skip
PATIENCE_SECONDS = 60.0


def build(seed: int) -> dict[str, object]:
    """A state as a training script has it, and a tensor of each type that the file format knows."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    return {
        "model": model,
        "half": nn.Linear(4, 4, dtype=torch.bfloat16),
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
        "random": torch.get_rng_state(),
        "types": {str(dtype): (torch.rand(7) * 3 + seed).to(dtype) for dtype in DTYPES},
        "scalar": torch.tensor(float(seed)),
        "seen": seed,
    }


def train(state: dict[str, object]) -> float:
    """One step on made-up data; the loss."""
    model, optimizer, scheduler = state["model"], state["optimizer"], state["scheduler"]
    optimizer.zero_grad()
    loss = model(torch.randn(32, 8)).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    state["random"].copy_(torch.get_rng_state())
    return loss.item()


def essence(value: object) -> object:
    """What has to come back; options of optimizers and schedulers differ between versions."""
    if isinstance(value, nn.Module):
        return value.state_dict()
    if isinstance(value, torch.optim.Optimizer):
        rates = [group["lr"] for group in value.param_groups]
        return {"moments": value.state_dict()["state"], "rates": rates}
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
        return value.last_epoch
    return value


def digest(state: dict[str, object]) -> str:
    """SHA-256 over path, type, shape and bytes of every tensor, and over the plain values."""
    found = hashlib.sha256()

    def add(path: str, value: object) -> None:
        held = essence(value)
        if isinstance(held, dict):
            for key in sorted(held, key=str):
                add(f"{path}.{key}", held[key])
        elif isinstance(held, torch.Tensor):
            flat = held.detach().reshape(-1).contiguous().view(torch.uint8)
            found.update(f"{path} {held.dtype} {tuple(held.shape)}".encode() + bytes(flat.tolist()))
        else:
            found.update(f"{path} {held!r}".encode())

    add("", state)
    return found.hexdigest()


def main() -> None:
    """Do what the command line says."""
    state = build(int(sys.argv[1]))
    with Checkpointer() as checkpointer:
        restored = checkpointer.restore(state)
        before, loss = digest(state), train(state)
        checkpointer.save(restored + 1, state)
        durable = checkpointer.wait(restored + 1, timeout=PATIENCE_SECONDS)
    told = {
        "torch": torch.__version__.partition("+")[0],
        "restored_step": restored,
        "restored_from": checkpointer.restored_from,
        "restored": before,
        "loss": loss,
        "saved": digest(state),
        "durable": durable,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()

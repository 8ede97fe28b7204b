# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""FSDP2 training that makes step 20 safe and then goes on slowly, telling its pieces' digests.

It is slow until the file HURRY is there. Its lines:
``trace stepped|safe|restored <step> <sha256 of this rank's pieces> [from <source>]``.
With the argument ``ddp`` every rank holds the same.
"""

import hashlib
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rover_kf import Checkpointer

SAFE, LAST = 20, 36
DDP = sys.argv[1:] == ["ddp"]
HURRY = pathlib.Path("/checkpoints/hurry")


def digest(model, optimizer):
    """SHA-256 over this rank's part of parameters and moments, in order."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        state = optimizer.state.get(parameter, {})
        for tensor in (parameter, state.get("exp_avg"), state.get("exp_avg_sq")):
            if tensor is not None:
                part = tensor.detach() if DDP else tensor.detach().to_local()
                found.update(part.numpy().tobytes())
    return found.hexdigest()


def tell(verb, step, *words):
    """One line of the trace, in one write: a pod's ranks share its log, and print has many."""
    line = " ".join(map(str, ("trace", verb, step, digest(model, optimizer), *words)))
    print(f"{line}\n", end="", flush=True)


dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 257), torch.nn.ReLU(), torch.nn.Linear(257, 3))
if DDP:
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
checkpointer = Checkpointer(every=SAFE)
first = checkpointer.restore(state)
tell("restored", first, "from", checkpointer.restored_from)
for step in range(first + 1, LAST + 1):
    torch.manual_seed(step * dist.get_world_size() + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    checkpointer.step(step, state, total_steps=LAST)
    tell("stepped", step)
    if step == SAFE:
        for level in ("replica", "durable"):
            assert checkpointer.wait(step, level, timeout=60), level
        tell("safe", step)
    elif step > SAFE and not HURRY.exists():
        time.sleep(1.0)  # no other save falls into the test
checkpointer.close()
dist.destroy_process_group()

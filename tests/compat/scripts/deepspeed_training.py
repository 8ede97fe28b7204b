# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training of DeepSpeed's (ZeRO's stage 1) whose folders go through memory.

Arguments: the last step, and a folder in memory for the files of all ranks.
"""

import hashlib
import os
import pathlib
import shutil
import sys
import time

import deepspeed
import torch
import torch.distributed as dist

import rover_kf

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    # Pods share no disk: the first rank of each writes the weights, too.
    "checkpoint": {"use_node_local_storage": True},
}


def main() -> None:
    """Train to the last step from wherever the job is."""
    last = int(sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    own = pathlib.Path(sys.argv[2]) / str(rank)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2)
    )
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    checkpointer = rover_kf.DirectoryCheckpointer()
    shutil.rmtree(own, ignore_errors=True)
    step = checkpointer.restore(own / "begin")
    if step:
        engine.load_checkpoint(str(own / "begin"), tag="state")
    print("resumed", step, checkpointer.restored_from, flush=True)
    while step < last:
        step += 1
        torch.manual_seed(step * world + rank)
        loss = engine(torch.rand(4, 8)).pow(2).mean()
        engine.backward(loss)
        engine.step()
        engine.save_checkpoint(str(own / "state"), tag="state")
        checkpointer.save(step, own / "state")
        print(
            f"step {step} rank {rank} of {world} pid {os.getpid()} "
            f"round {os.environ['ROVER_ROUND']} at {time.time()}",
            flush=True,
        )
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print("weights", hashlib.sha256(flat.numpy().tobytes()).hexdigest(), flush=True)
    checkpointer.close()
    dist.destroy_process_group()


main()

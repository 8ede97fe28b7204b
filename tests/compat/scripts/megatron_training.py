# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A GPT of Megatron Core's, cut over all ranks, whose sharded state goes through memory.

Argument: the last step. Without a GPU: parameters are made and used on processors alone.
"""

import hashlib
import os
import sys
import time
from collections import defaultdict

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, apply_factories
from megatron.core.dist_checkpointing.optimizer import (
    get_param_id_to_sharded_param_map,
    optim_state_to_sharding_state,
)
from megatron.core.dist_checkpointing.strategies.torch import mcore_to_pyt_state_dict
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.distributed import checkpoint as dcp

import rover_kf
from rover_kf.trainer.dcp import Reader, Writer

WIDTH, WORDS = 16, 64
ON_PROCESSORS = {
    "use_cpu_initialization": True,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
    "bias_dropout_fusion": False,
    "gradient_accumulation_fusion": False,
}


class Attention(torch.nn.Module):
    """In place of Megatron's own, which keeps its scores in a GPU's memory."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def forward(self, query, key, value, *_: object, **__: object) -> torch.Tensor:
        """Places, samples, heads, numbers; of places and samples all heads' in one at the end."""
        turned = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        found = torch.nn.functional.scaled_dot_product_attention(*turned, is_causal=True)
        return found.permute(2, 0, 1, 3).flatten(2)


def build() -> GPTModel:
    """Two layers, each tensor of theirs cut over all ranks or on all of them."""
    # Megatron's own generators are of GPUs; this one leaves the processor's alone.
    megatron_random.initialize_rng_tracker(inference_rng_tracker=True)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        tensor_model_parallel_size=dist.get_world_size(),
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        **ON_PROCESSORS,
    )
    layers = get_gpt_layer_local_spec()
    layers.submodules.self_attention.submodules.core_attention = Attention
    return GPTModel(
        config=config,
        transformer_layer_spec=layers,
        vocab_size=WORDS,
        max_sequence_length=WIDTH,
    )


def state_of(model: GPTModel, optimizer: torch.optim.Optimizer, step: int) -> dict:
    """What dcp.save and dcp.load take: the live tensors under the names that Megatron gives them.

    ``singleton_local_shards`` gives each layer and each half of a gated layer a name of its own.
    """
    sharded = {"model": model.sharded_state_dict(metadata={"singleton_local_shards": True})}
    places = get_param_id_to_sharded_param_map(
        sharded["model"], (p for group in optimizer.param_groups for p in group["params"])
    )
    moments = optimizer.state_dict()
    optim_state_to_sharding_state(moments, places, exclude_keys=("step",))
    sharded["moments"] = moments["state"]
    apply_factories(sharded)
    named = defaultdict(list)
    for found in nested_values(sharded):
        named[found.unique_key if isinstance(found, ShardedObject) else found.key].append(found)
    return {"sharded": mcore_to_pyt_state_dict(named), "progress": {"step": step}}


def start_moments(optimizer: torch.optim.Optimizer) -> None:
    """Make what an optimizer makes at its first step, so that there is something to load into."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def restore(checkpointer: rover_kf.Checkpointer, model: GPTModel, optimizer) -> int:
    """The step from which it goes on."""
    state = state_of(model, optimizer, 0)
    reader = Reader(checkpointer, state)
    if not reader.find():
        return 0
    dcp.load(state, storage_reader=reader)
    step = state["progress"]["step"]
    for moments in optimizer.state.values():
        moments["step"].fill_(step)
    return step


def digest(state: dict) -> str:
    """Of the whole tensors, however they are cut."""
    pieces = {
        name: (tensor._sh_ten.global_shape, tensor._sh_ten.global_offset, tensor._sh_ten.data)
        for name, tensor in state["sharded"].items()
        if isinstance(tensor, torch.Tensor)
    }
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, pieces)
    found = hashlib.sha256()
    for name in sorted(pieces):
        whole = torch.full(pieces[name][0], torch.nan)
        for shape, begin, data in (rank[name] for rank in everywhere):
            assert tuple(shape) == tuple(whole.shape)
            whole[tuple(map(slice, begin, map(sum, zip(begin, data.shape, strict=True))))] = data
        assert not whole.isnan().any(), name
        found.update(name.encode() + whole.numpy().tobytes())
    return found.hexdigest()


def train(model: GPTModel, optimizer: torch.optim.Optimizer, step: int) -> None:
    """One step; the same words on all ranks, as tensor parallelism wants it."""
    torch.manual_seed(step)
    words = torch.randint(0, WORDS, (4, WIDTH))
    places = torch.arange(WIDTH).expand(4, WIDTH)
    optimizer.zero_grad()
    model(words, places, None, labels=words.roll(-1, 1)).mean().backward()
    optimizer.step()


def main() -> None:
    """Train to the last step from wherever the job is."""
    last = int(sys.argv[1])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world)
    torch.manual_seed(1)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start_moments(optimizer)
    checkpointer = rover_kf.Checkpointer()
    step = restore(checkpointer, model, optimizer)
    held = digest(state_of(model, optimizer, step))
    print("resumed", step, checkpointer.restored_from, held, flush=True)
    while step < last:
        step += 1
        train(model, optimizer, step)
        dcp.save(state_of(model, optimizer, step), storage_writer=Writer(checkpointer, step))
        print(
            f"step {step} rank {rank} of {world} pid {os.getpid()} "
            f"round {os.environ['ROVER_ROUND']} at {time.time()}",
            flush=True,
        )
    print("ended", step, digest(state_of(model, optimizer, step)), flush=True)
    assert checkpointer.wait(step, "durable", timeout=60)
    checkpointer.close()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

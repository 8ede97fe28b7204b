# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings of a tiny Llama by Trainer, one after the other, each rank forked from this process.

    huggingface_training.py RUNS

RUNS is JSON: [{"ranks": [environment, …], "folder": …, "plain": transformers' own Trainer?,
"kill_at": step at whose logging every rank is killed by SIGKILL; 0: none; -1: when all is trained,
"twice": train again?, "refused": only see what is?, "way": "ddp" | "accelerate" | "transformers":
whose FSDP2 it is, "stream": has the data no length?, "patience": evaluations without a better one
until it stops early, "logs": does it log tensors?, "arguments": others of Trainer's}, …].
Rank 0 of a run that ends leaves ``result.json`` in the folder: digests of all that was trained.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pathlib
import signal
import sys

import pytest
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
    TrainingArguments,
)
from transformers.distributed import DistributedConfig

import rover_kf.trainer.huggingface.trainer
from rover_kf.errors import UnsupportedState
from tests.support.process_pool import forked_ranks
from tests.support.training.sharded_training import whole

WIDTH = 16
SAMPLES = (
    46  # no multiple of batch, ranks and accumulation: the last update of an epoch is a smaller one
)
EPOCHS = 2
LAYER = "LlamaDecoderLayer"
BY_ACCELERATE = {
    "fsdp": True,
    "fsdp_config": {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": [LAYER],
    },
}


class Text(Dataset):
    """Bytes of a module of the standard library."""

    def __init__(self) -> None:
        found = pathlib.Path(json.__file__).read_bytes()[: SAMPLES * WIDTH]
        self._rows = torch.tensor(list(found)).reshape(SAMPLES, WIDTH)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._rows[index], "labels": self._rows[index]}


class Stream(IterableDataset):
    """The same without a length."""

    def __iter__(self):
        yield from map(Text().__getitem__, range(SAMPLES))


class Logs:
    """A Trainer that logs more."""

    def compute_loss(self, *given, **named):
        found = super().compute_loss(*given, **named)
        if isinstance(found, torch.Tensor):  # evaluations get the outputs with it
            self.log({"mine": found})
        return found


class Kill(TrainerCallback):
    """The end that nobody announced."""

    def __init__(self, at: int) -> None:
        self._at = at

    def on_log(self, args, state, control, **_):
        del args, control
        if 0 < state.global_step == self._at:
            os.kill(os.getpid(), signal.SIGKILL)


def digest(value: object) -> str:
    """SHA-256 of tensors in nested dicts and lists, and of what else they hold."""
    found = hashlib.sha256()

    def add(item: object) -> None:
        if isinstance(item, dict):
            for key in sorted(item, key=str):
                found.update(str(key).encode())
                add(item[key])
        elif isinstance(item, (list, tuple)):
            for inner in item:
                add(inner)
        elif isinstance(item, torch.Tensor):
            found.update(item.contiguous().numpy().tobytes())
        else:
            found.update(repr(item).encode())

    add(value)
    return found.hexdigest()


def build(run: dict) -> LlamaForCausalLM:
    """One layer, the same numbers in every process; with a parameter that two modules share."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 256, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": WIDTH}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True, attention_dropout=0.1)
    model = LlamaForCausalLM(config)
    if run.get("way") != "transformers":
        return model
    folder = pathlib.Path(run["folder"], "begin", os.environ["RANK"])
    model.save_pretrained(folder)
    cut = DistributedConfig(fsdp_size=int(os.environ["WORLD_SIZE"]))
    return LlamaForCausalLM.from_pretrained(folder, distributed_config=cut)


def arguments(run: dict) -> TrainingArguments:
    """The same for every way but FSDP's own."""
    usual = {
        "output_dir": run["folder"],
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    way = BY_ACCELERATE if run.get("way") == "accelerate" else {}
    found = TrainingArguments(**{**usual, **way, **run.get("arguments", {})})
    if run.get("way") == "accelerate":
        # For processors it forgets that FSDP was asked for: so it is told that these are GPUs.
        PartialState().distributed_type = DistributedType.MULTI_GPU
    return found


def train(run: dict) -> None:
    """One rank's."""
    stopping = [EarlyStoppingCallback(run["patience"], 0.5)] if "patience" in run else []
    kind = transformers.Trainer if run["plain"] else rover_kf.trainer.huggingface.Trainer
    if run.get("logs"):
        kind = type("Logging", (Logs, kind), {})
    trainer = kind(
        model=build(run),
        args=arguments(run),
        train_dataset=Stream() if run.get("stream") else Text(),
        eval_dataset=Text(),
        callbacks=[*stopping, Kill(run["kill_at"])],
    )
    if run.get("refused"):
        refused(trainer)
        return
    trainer.train()
    if run["kill_at"] == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    parameters, moments = trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]
    assert isinstance(moments[0]["exp_avg"], DTensor) == ("way" in run)
    told = {
        "model": digest(whole(parameters)),
        "optimizer": digest(whole(moments)),
        "schedule": digest(trainer.lr_scheduler.state_dict()),
        "generator": digest(torch.get_rng_state()),
        "steps": trainer.state.global_step,
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "judged": [e["eval_loss"] for e in trainer.state.log_history if "eval_loss" in e],
        "epochs": [entry["epoch"] for entry in trainer.state.log_history if "loss" in entry],
        "source": "" if run["plain"] else trainer.flash.checkpointer.restored_from,
    }
    if run.get("twice"):
        trainer.train()
        told["losses again"] = sum("loss" in entry for entry in trainer.state.log_history)
    if int(os.environ["RANK"]) == 0:
        pathlib.Path(run["folder"], "result.json").write_text(json.dumps(told))


def refused(trainer: rover_kf.trainer.huggingface.Trainer) -> None:
    """What Trainer finds out about its accelerator, told to it here, where there is none."""
    for flag, word in (("is_deepspeed_enabled", "DeepSpeed"), ("is_fsdp_enabled", "version 2")):
        setattr(trainer, flag, True)
        with pytest.raises(UnsupportedState, match=word):
            trainer.train()
        setattr(trainer, flag, False)


def main() -> None:
    """Fork the ranks of each run, and wait for them."""
    for run in json.loads(sys.argv[1]):
        codes = forked_ranks.run(run["ranks"], functools.partial(train, run))
        expected = -signal.SIGKILL if run["kill_at"] else 0
        assert codes == [expected] * len(codes), codes


if __name__ == "__main__":
    main()

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Trainings of a tiny network by Lightning, one after the other, each rank forked from here.

    lightning_training.py RUNS

RUNS is JSON: [{"ranks": [environment, …], "folder": …, "end": how it ends, "at": which optimizer
step, "plain": without our callback?, "places": do the data loaders keep their own place?, "manual":
is the optimization manual?, "averaged": does a callback keep averaged weights?, "twice": train on?,
"overlap": copy while training goes on?, "older": is fit() given Lightning's file, too?,
"refused": only see what is?, "way": another way to train, "epochs": other than two}, …]. A run
ends by "kill" (SIGKILL of every rank), by "drain" (the job changes its size), or of itself; then
rank 0 leaves ``result.json`` in the folder: digests of all that was trained.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import pathlib
import random
import signal
import sys
import warnings

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset

from rover_kf import ElasticDataLoader
from rover_kf.api import names
from rover_kf.errors import UnsupportedState
from rover_kf.trainer.lightning import FlashCheckpoint
from tests.support.process_pool import forked_ranks
from tests.support.training.sharded_training import digest_of

SAMPLES = 50  # no multiple of batch, ranks and accumulation: the last steps of an epoch are smaller
EPOCHS = 2
ENDED = -1
"""Where a run is killed once fit() has returned."""


class Rows(Dataset):
    """Rows that are disturbed anew each time, by all three random generators."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = random.random() + float(np.random.rand())  # noqa: NPY002 - it is the restored one
        return torch.full((7,), float(index)).sin() + noise * torch.rand(7)


class Placed(DataLoader):
    """A data loader that keeps its place."""

    _first = _used = 0

    def __iter__(self):
        first, self._first = self._first, 0
        for index, rows in enumerate(self.batch_sampler):
            if index >= first:
                self._used = index + 1
                yield self.collate_fn([self.dataset[row] for row in rows])

    def state_dict(self) -> dict[str, int]:
        return {"used": self._used % len(self)}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self._first = state_dict["used"]


class Data(lightning.LightningDataModule):
    """Loaders, and a number that each process draws."""

    def __init__(self, run: dict) -> None:
        super().__init__()
        self.run, self.number = run, random.random()

    def train_dataloader(self) -> DataLoader:
        if self.run.get("places"):
            return Placed(Rows(), 3)
        if self.run.get("way") == "elastic":
            return ElasticDataLoader(Rows(), 3)
        own = torch.Generator().manual_seed(3) if self.run.get("way") == "own order" else None
        rows, _ = torch.utils.data.random_split(Rows(), [SAMPLES - 3, 3])
        return DataLoader(rows, 3, shuffle=True, generator=own)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Rows(), 16)

    def state_dict(self) -> dict[str, float]:
        return {"number": self.number}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self.number = state_dict["number"]


class Network(lightning.LightningModule):
    """Dropout and batch norm, a learning rate that needs to know the number of steps, losses that
    a hook keeps."""

    def __init__(self, run: dict) -> None:
        super().__init__()
        self.run, self.losses = run, []
        self.automatic_optimization = not run.get("manual")
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(7, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2)
        )
        self.last = torch.nn.Linear(16, 1)
        if run.get("way") == "tuned":
            self.backbone = self.layers[0]

    def _loss(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.last(self.layers(batch)) - batch.sum(1, keepdim=True)).square().mean()

    def on_train_epoch_start(self) -> None:
        self.used = []

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self._loss(batch)
        self.used.append(len(batch))
        self.losses.append(loss.item())
        self.log("loss", loss)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch: torch.Tensor) -> None:
        self.log("judged", self._loss(batch), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        if self.run.get("manual"):
            return optimizer
        if self.run.get("way") in {"hooks", "swa"}:
            return optimizer
        if self.run.get("way") == "tuned":
            free = [one for one in self.parameters() if one.requires_grad]
            return torch.optim.AdamW(free, lr=1e-2)
        if self.run.get("way") == "plateau":  # asked at each epoch's end
            plateau = ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
            return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "judged"}
        # Twice as many: alone, what two have begun takes more steps.
        steps = 2 * int(self.trainer.estimated_stepping_batches)
        cycle = {"scheduler": OneCycleLR(optimizer, 1e-2, steps), "interval": "step"}
        plateau = ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return [optimizer], [
            cycle,
            {"scheduler": plateau, "interval": "step", "frequency": 4, "monitor": "judged"},
        ]

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["losses"] = list(self.losses)

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self.losses = checkpoint["losses"]


class Judged(lightning.Callback):
    """What the evaluations found, kept as callbacks keep theirs; and the end that nobody
    announced."""

    def __init__(self, run: dict) -> None:
        self.found, self._kill_at = [], run["at"] if run["end"] == "kill" else 0

    def on_validation_end(self, trainer, pl_module):
        del pl_module
        if not trainer.sanity_checking:
            self.found.append((trainer.global_step, trainer.callback_metrics["judged"].item()))

    def on_train_batch_end(self, trainer, *_):
        if self._kill_at and trainer.global_step == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def state_dict(self):
        return {"found": self.found}

    def load_state_dict(self, state_dict):
        self.found = state_dict["found"]


def trainer_of(run: dict, *callbacks: lightning.Callback, **more: object) -> lightning.Trainer:
    """In a world as the variables say."""
    size = int(os.environ["WORLD_SIZE"])
    settings = {"strategy": "ddp" if size > 1 else "auto", "val_check_interval": 4}
    return lightning.Trainer(
        **{**settings, **more},
        accelerator="cpu",
        devices=1,
        num_nodes=size,
        max_epochs=run.get("epochs", EPOCHS),
        accumulate_grad_batches=1 if run.get("manual") or run.get("way") == "hooks" else 3,
        callbacks=list(callbacks),
        default_root_dir=run["folder"],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(run: dict) -> None:
    """One rank's."""
    warnings.filterwarnings("error", "You're resuming")  # it is not so of what we bring back
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if run.get("refused"):
        refused(run)
        return
    drain = pathlib.Path(os.environ["ROVER_HOME"]) / names.DRAIN_FILE
    drain.parent.mkdir(exist_ok=True)
    drain.write_bytes((run["at"] if run["end"] == "drain" else 0).to_bytes(8, "little"))
    # Another seed each round: what is restored must replace all that came of it.
    seed = 1 if run["plain"] else int(os.environ["ROVER_ROUND"])
    for start in (random.seed, np.random.seed, torch.manual_seed):
        start(seed)
    model, data, judged = Network(run), Data(run), Judged(run)
    flash = FlashCheckpoint(overlap=run.get("overlap", False))
    at_the_end = run.get("way") == "averages"
    averaged = [WeightAveraging()] if run.get("averaged") or at_the_end else []
    patience = (
        {"patience": 2, "min_delta": 1e9} if run.get("way") == "stopped" else {"patience": 50}
    )
    stopping = EarlyStopping("judged", **patience)
    folder, _, _ = run["folder"].rpartition("-")  # the same each round, or it begins anew
    best = ModelCheckpoint(folder, monitor="judged", save_top_k=2)
    ours = [] if run["plain"] else [flash]
    more = {
        "hooks": [GradientAccumulationScheduler({0: 1, 1: 3})],
        "tuned": [BackboneFinetuning(1)],
        "swa": [StochasticWeightAveraging(1e-3, swa_epoch_start=1)],
        "pruned": [ModelPruning("l1_unstructured", use_lottery_ticket_hypothesis=False)],
    }.get(run.get("way"), [])
    theirs = [judged, stopping, best, *averaged, *more]
    trainer = trainer_of(run, *(ours + theirs if at_the_end else theirs + ours))
    older = next(pathlib.Path(folder).glob("*.ckpt"), None) if run.get("older") else None
    trainer.fit(model, data, ckpt_path=older)
    if run["end"] == "kill" and run["at"] == ENDED:
        os.kill(os.getpid(), signal.SIGKILL)
    if int(os.environ["RANK"]) == 0:
        told = {
            "model": digest_of(model.state_dict()),
            "optimizer": digest_of(trainer.optimizers[0].state_dict()["state"]),
            "rates": [found.scheduler.get_last_lr() for found in trainer.lr_scheduler_configs],
            "averaged": [digest_of(found._average_model.state_dict()) for found in averaged],
            "drawn": Rows()[1].tolist(),
            "stopping": stopping.wait_count,
            "best": sorted(score.item() for score in best.best_k_models.values()),
            "number": data.number,
            "measured": {name: value.item() for name, value in trainer.callback_metrics.items()},
            "progress": trainer.fit_loop.state_dict(),
            "steps": trainer.global_step,
            "losses": list(model.losses),
            "judged": judged.found,
            "source": "" if run["plain"] else flash.checkpointer.restored_from,
        }
        if run.get("twice"):
            trainer.fit_loop.max_epochs += 1
            trainer.fit(model, data)
            told["losses again"] = len(model.losses)
        pathlib.Path(run["folder"], "result.json").write_text(json.dumps(told))


def refused(run: dict) -> None:
    """What not all could be brought back of; also where nothing is saved."""

    class Gathers(SingleDeviceStrategy):
        restore_checkpoint_after_setup = True

    class Takes(Network):
        def training_step(self, dataloader_iter):
            return self._loss(next(dataloader_iter)[0])

    some = Network(run)
    some.strict_loading = False
    data, mixed = Data(run), [Placed(Rows(), 3), DataLoader(Rows(), 3)]
    for model, loaders, more, words in (
        (Network(run), data, {"strategy": Gathers("cpu")}, "Gathers gathers"),
        (some, data, {}, "strict_loading"),
        (Network(run), mixed, {}, "to all or to none"),
        (Takes(run), data, {"val_check_interval": None}, "dataloader_iter"),
    ):
        trainer = trainer_of(run, FlashCheckpoint(), **more)
        with pytest.raises(UnsupportedState, match=words):
            trainer.fit(model, loaders)


def main() -> None:
    """Fork the ranks of each run, and wait for them."""
    for run in json.loads(sys.argv[1]):
        codes = forked_ranks.run(run["ranks"], functools.partial(train, run))
        expected = {"kill": -signal.SIGKILL, "drain": names.EXIT_DRAINED, "": 0}[run["end"]]
        assert codes == [expected] * len(codes), codes


if __name__ == "__main__":
    main()

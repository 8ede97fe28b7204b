# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The command line called in this process, and a job's folder with checkpoints of three worlds."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil

import pytest

from rover_kf.checkpoint.storage.factory import open_storage
from rover_kf.checkpoint.storage.storage_protocol import Storage
from rover_kf.cli import main
from tests.support.states import identities, stored_states

SHARDED = frozenset({"model.0.weight", "optimizer.state.0.exp_avg"})


@dataclasses.dataclass
class Job:
    """A job's checkpoints in a folder."""

    path: pathlib.Path

    @property
    def storage(self) -> Storage:
        return open_storage(str(self.path.parent), self.path.name)

    def folder(self, step: int, round_: int = 1) -> pathlib.Path:
        return pathlib.Path(self.storage.folder(identities.state(step, round_)).location)


@pytest.fixture(scope="package")
def three(tmp_path_factory):
    """One training's state thrice: by a world of one, of three (DDP), of two that shard; only to
    be read."""
    job = Job(tmp_path_factory.mktemp("storage") / "demo")
    ranks = [stored_states.training(1, rank=rank) for rank in range(3)]
    stored_states.store(job.storage, 1, ranks[:1], saved_at=1_700_000_000)
    metrics = {"accuracy": 0.75, "loss": 0.5}
    stored_states.store(job.storage, 2, ranks, saved_at=1_700_000_060, metrics=metrics)
    stored_states.store(job.storage, 3, ranks[:2], 2, SHARDED, saved_at=1_700_000_120)
    return job


@pytest.fixture
def job(three, tmp_path):
    """The same, to be damaged."""
    shutil.copytree(three.path, tmp_path / "storage" / "demo")
    return Job(tmp_path / "storage" / "demo")


@pytest.fixture
def call(capsys, monkeypatch):
    """``rover-kf checkpoint …``: exit code, output, errors."""
    monkeypatch.setenv("COLUMNS", "250")

    def run(*words):
        with pytest.raises(SystemExit) as end:
            main(["checkpoint", *(str(word) for word in words)])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return end.value.code, said.out, said.err

    return run

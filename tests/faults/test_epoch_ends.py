# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A training that dies after each of its steps, in turn, ends as one that nothing happened to."""

from __future__ import annotations

import json
import pathlib
import signal

import pytest

from rover_kf.api import names
from tests.support.pods import checkpoint_pod
from tests.support.process_pool.rank_server import serving
from tests.support.training.epoch_training import EPOCHS, STEPS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SCRIPT = pathlib.Path(__file__).parents[1] / "support" / "training" / "epoch_training.py"
CODES = {"": 0, "kill": -signal.SIGKILL, "drain": names.EXIT_DRAINED}


@pytest.fixture(scope="module")
def ranks():
    """Forks worlds."""
    with serving(SCRIPT) as running:
        yield running


def _train(ranks, pods, result, rounds) -> dict:
    """Live through rounds, each with its end; what rank 0 has at the last one's."""
    for round_, (how, at) in enumerate(rounds, 1):
        store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(checkpoint_pod.free_port())}
        environments = [
            pod.environment(rank=rank, world_size=len(pods), round_=round_) | store
            for rank, pod in enumerate(pods)
        ]
        ranks.start(environments, ends=how, at=at, result=str(result))
        assert ranks.wait() == [CODES[how]] * len(pods)
    return json.loads(result.read_text())


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_the_code_after_an_epoch_runs_once(ranks, tmp_path, world):
    """Killed, or drained for a change of size, after the save of every single step: learning rates,
    validations, samples, weights and momenta are bit for bit the undisturbed training's."""
    found = {}
    for name, rounds in (
        ("calm", [("", 0)]),
        ("killed", [("kill", at) for at in range(1, EPOCHS * STEPS + 1)] + [("", 0)]),
        ("drained", [("drain", epoch * STEPS) for epoch in range(1, EPOCHS + 1)] + [("", 0)]),
    ):
        with checkpoint_pod.pods(tmp_path / name, world) as pods:
            found[name] = _train(ranks, pods, tmp_path / f"{name}.json", rounds)
    assert len(found["calm"]["log"]["validations"]) == EPOCHS
    assert found["killed"] == found["drained"] == found["calm"]

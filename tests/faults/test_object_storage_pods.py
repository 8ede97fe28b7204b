# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Real sidecars whose checkpoints go to a real S3 server, and what they lose with either."""

from __future__ import annotations

import pathlib
import time

import pytest
import torch

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.sidecar_client import SidecarClient
from tests.support.pods import checkpoint_pod
from tests.support.servers.object_server import ObjectServer, object_server, offer
from tests.support.waiting import eventually

# The first fixture may compile the server: that has a limit of its own.
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300, func_only=True)]

URL = "s3://checkpoints/runs"


@pytest.fixture
def server(tmp_path, monkeypatch):
    with object_server(tmp_path / "s3") as running:
        offer(running, monkeypatch)
        yield running


def _checkpointer(pod: checkpoint_pod.Pod, round_: int = 1) -> Checkpointer:
    return Checkpointer(settings=trainer_settings.read(pod.environment(round_=round_)))


def _state(seed: int) -> dict[str, object]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(512, 2048)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 512)).square().sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "epoch": seed}


def _bytes(state: dict[str, object]) -> list[bytes]:
    moments = state["optimizer"].state_dict()["state"].values()
    tensors = [*state["model"].state_dict().values(), *(t for m in moments for t in m.values())]
    return [tensor.numpy().tobytes() for tensor in tensors]


def _durable(server: ObjectServer) -> list[int]:
    """Steps that have a manifest in the bucket."""
    found = (server.bucket / "runs" / "demo").glob("step-*/manifest.json")
    return sorted(int(path.parent.name.split("-")[1]) for path in found)


def _told_by(pod: checkpoint_pod.Pod) -> str:
    """All that the pod has told or shows."""
    assert pod.process is not None
    arguments = pathlib.Path(f"/proc/{pod.process.pid}/cmdline").read_text()
    return arguments + (pod.settings.volume_path / "events").read_text()


def _postponed(pod: checkpoint_pod.Pod) -> list[str]:
    """Warnings of persists that are tried again (old checkpoints that stay are told beside)."""
    told = pod.told(names.EVENT_CHECKPOINT_WARNING)
    return [message for message in told if "checkpoints in memory go on" in message]


def test_a_pod_that_is_lost_restores_from_the_bucket(server, tmp_path, capfd):
    """Killed, its memory gone: the next pod has the very bytes; nobody shows the credentials."""
    state = _state(1)
    with checkpoint_pod.pods(tmp_path / "first", 1, storage=URL) as (pod,):
        checkpointer = _checkpointer(pod)
        assert checkpointer.restore(state) == 0
        checkpointer.save(3, state)
        checkpointer.wait(3)
        pod.kill()
    assert _durable(server) == [3]
    successor = _state(2)
    assert _bytes(successor) != _bytes(state)
    with checkpoint_pod.pods(tmp_path / "second", 1, storage=URL) as (pod,):
        with _checkpointer(pod) as checkpointer:
            assert checkpointer.restore(successor) == 3
        (restored,) = pod.told(names.EVENT_RESTORED)
        shown = _told_by(pod)
    assert "from storage" in restored
    assert successor["epoch"] == 1
    assert _bytes(successor) == _bytes(state)
    printed = capfd.readouterr()
    for secret in (server.key, server.secret):
        assert secret not in shown + printed.out + printed.err


def test_a_server_that_is_lost_costs_a_warning_and_no_step_in_memory(server, tmp_path, capfd):
    """It dies with a persist under way: saves go on; when it is back, persists do too."""
    arena = tmp_path / "pods" / "pod-0" / "arena" / "0"
    with checkpoint_pod.pods(tmp_path / "pods", 1, storage=URL) as (pod,):
        with _checkpointer(pod) as checkpointer:
            state = _state(1)
            checkpointer.restore(state)
            checkpointer.save(1, state)
            checkpointer.wait(1)
            with server.frozen():
                checkpointer.save(2, state)
                server.stop()
            eventually(lambda: _postponed(pod), what="a Warning of the persist")
            checkpointer.save(3, state)
            assert Arena(arena).sealed()[0].state.step == 3
            server.start()
            eventually(lambda: 3 in _durable(server), within=60, what="step 3 is durable")
        warnings = _postponed(pod)
        shown = _told_by(pod)
    print(f"{len(warnings)} warning(s): {warnings[0]}")
    assert "no answer; check the endpoint" in warnings[0]
    printed = capfd.readouterr()
    assert server.secret not in shown + printed.out + printed.err


def test_a_cap_holds_persists_back_but_no_flush(server, tmp_path):
    """12 MiB at 1.5 MiB/s take seconds; before the pod ends nobody waits for them."""
    pods = checkpoint_pod.pods(tmp_path / "pods", 1, storage=URL, checkpoint_bandwidth=3 << 19)
    with pods as (pod,), _checkpointer(pod) as checkpointer:
        state = _state(1)
        checkpointer.restore(state)
        begun = time.monotonic()
        checkpointer.save(1, state)
        checkpointer.wait(1)
        held_back = time.monotonic() - begun
        begun = time.monotonic()
        checkpointer.save(2, state)
        flushed = SidecarClient(pod.settings.volume_path).request(
            names.PATH_FLUSH, Ack(), Ack, timeout=60
        )
        at_once = time.monotonic() - begun
    print(f"{held_back:.1f} s with the cap, {at_once:.1f} s by a flush")
    assert flushed.done
    assert _durable(server) == [1, 2]
    assert held_back > 5.0
    assert at_once < held_back / 2


def test_a_pod_starts_while_the_server_hangs(server, tmp_path):
    """Within its probe's time. What is in memory is restored; without it nothing is begun anew."""
    home = tmp_path / "pods"
    state = _state(1)
    with checkpoint_pod.pods(home, 1, storage=URL) as (pod,):
        with _checkpointer(pod) as checkpointer:
            checkpointer.restore(state)
            checkpointer.save(3, state)
            checkpointer.wait(3)
            pod.kill()
            with server.frozen():
                begun = time.monotonic()
                pod.start()
                print(f"up after {time.monotonic() - begun:.1f} s with a storage that hangs")
                assert _checkpointer(pod, round_=2).restore(_state(2)) == 3
        assert any("no answer" in told for told in pod.told(names.EVENT_CHECKPOINT_WARNING))
    with checkpoint_pod.pods(tmp_path / "other", 1, storage=URL) as (pod,):
        server.stop()
        with pytest.raises(errors.StorageError, match="no answer"):
            _checkpointer(pod).restore(_state(2))
        server.start()
        assert _checkpointer(pod, round_=2).restore(state) == 3

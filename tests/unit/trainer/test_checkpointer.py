# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The three lines of a training script, against a real sidecar process."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rover_kf import errors
from rover_kf.api import names
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.storage.directory import DirectoryStorage
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer import sidecar_client
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.directory.checkpointer import DirectoryCheckpointer
from rover_kf.trainer.sidecar_client import SidecarClient
from rover_kf.trainer.state import flatten as states
from rover_kf.trainer.state import tensor_views
from tests.support.pods import checkpoint_pod
from tests.support.states import identities
from tests.support.waiting import eventually

pytestmark = pytest.mark.torch


def _checkpointer(pod: checkpoint_pod.Pod, **world: int) -> Checkpointer:
    return Checkpointer(settings=trainer_settings.read(pod.environment(**world)))


class Following:
    """Keeps the questions that it may ask."""

    def __init__(self) -> None:
        self.questions: list[Callable[[], bool]] = []

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state_dict: object) -> None:
        """It has nothing to take back."""

    def state_saved(self, is_durable: Callable[[], bool]) -> None:
        self.questions.append(is_durable)


def _fresh(seed: int) -> dict[str, object]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    return {
        "model": model,
        "optimizer": optimizer,
        "schedule": schedule,
        "epoch": 0,
        "table": torch.arange(6, dtype=torch.int64).reshape(2, 3) * seed,
        "history": [1.0],
    }


def _train(state: dict[str, object], steps: int) -> None:
    for _ in range(steps):
        state["optimizer"].zero_grad()
        state["model"](torch.randn(4, 8)).square().sum().backward()
        state["optimizer"].step()
        state["schedule"].step()
    state["epoch"] = steps
    state["history"] = [0.5, float("nan"), (1, b"x", None)]


def _flat(value: object, path: str = "") -> dict[str, object]:
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif isinstance(value, torch.Tensor):
        return {path: (value.dtype, tuple(value.shape), value.numpy().tobytes())}
    else:
        return {path: (type(value), repr(value))}
    return {k: v for key, item in items for k, v in _flat(item, f"{path}/{key!r}").items()}


def test_state_comes_back_bit_equal_from_own_memory(tmp_path):
    """A killed process's successor has the very bytes of the sealed step, and shares none."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state = _fresh(1)
        with _checkpointer(pod) as first:
            assert first.restore(state) == 0
            _train(state, 3)
            first.save(3, state)
            expected = _flat(state)
            _train(state, 1)
        successor = _fresh(2)
        table = successor["table"]
        with _checkpointer(pod, round_=2) as second:
            assert second.restore(successor) == 3
            assert second.restored_from == "memory"
            assert _flat(successor) == expected
            assert successor["table"] is table
            for step in (4, 5, 6):
                second.save(step, _fresh(step))
            assert _flat(successor) == expected
        (told,) = pod.told(names.EVENT_RESTORED)
        assert told.startswith("rank 0 of 1 resumes at step 3 from memory in round 2;")


def test_an_optimizers_state_dict_in_its_place_is_told(tmp_path, caplog):
    """As torch.save takes it: the weights come back in place, the moments into the dict alone."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        for round_ in (1, 2):
            model = torch.nn.Linear(2, 2)
            optimizer = torch.optim.Adam(model.parameters())
            state = {"net": {"model": model.state_dict(), "optimizer": optimizer.state_dict()}}
            caplog.clear()
            with _checkpointer(pod, round_=round_) as checkpointer:
                assert checkpointer.restore(state) == round_ - 1
                (told,) = [record.getMessage() for record in caplog.records]
                assert "state['net']['optimizer'] is a state dict" in told
                assert not optimizer.state
                optimizer.load_state_dict(state["net"]["optimizer"])
                assert len(optimizer.state) == 2 * (round_ - 1)
                model(torch.ones(2)).sum().backward()
                optimizer.step()
                state["net"]["optimizer"] = optimizer.state_dict()
                checkpointer.save(round_, state)


def test_a_look_takes_no_memory(tmp_path):
    """What a rank's part of sharded state fits into may be too small for the whole, which nobody
    has named the parts of yet: plain data comes without any slot."""
    storage = tmp_path / "pvc"
    pods = checkpoint_pod.pods(tmp_path / "a", 1, storage=storage)
    with pods as (pod,), _checkpointer(pod) as checkpointer:
        checkpointer.save(3, {"epoch": 2, "w": torch.ones(1 << 20)})
        assert checkpointer.wait(3)
    with checkpoint_pod.pods(tmp_path / "b", 1, storage=storage, arena_bytes=1 << 20) as (pod,):
        with _checkpointer(pod) as checkpointer:
            assert checkpointer.peek() == {"epoch": 2, "w": None}
            assert checkpointer.restored_from == "none"
            with pytest.raises(errors.ArenaTooSmall):
                checkpointer.restore({"epoch": 0, "w": torch.zeros(1 << 20)})
        assert pod.told(names.EVENT_RESTORED) == []


@pytest.mark.parametrize("fresh", [True, False])
def test_what_was_saved_since_a_restore_is_not_taken_back_by_another(tmp_path, fresh):
    """All ranks of a round get one answer; after a save it would be an older state."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state: dict[str, object] = {"n": 3}
        if not fresh:
            with _checkpointer(pod) as before:
                before.save(3, state)
        begun = 0 if fresh else 3
        with _checkpointer(pod, round_=2) as checkpointer:
            assert (checkpointer.peek() is None) is fresh
            for _ in range(2):
                assert checkpointer.restore(state) == begun
            for step in (begun + 1, begun + 2):
                state["n"] = step
                checkpointer.save(step, state)
            calls = (lambda: checkpointer.restore(state), checkpointer.peek, checkpointer.bring)
            for call in calls:
                with pytest.raises(errors.CheckpointError, match="steps were saved since"):
                    call()
            assert state == {"n": begun + 2}
            checkpointer.save(begun + 3, state)
            assert checkpointer.wait(begun + 3, "memory")


def test_step_numbers_that_go_back_are_refused(tmp_path):
    """A restore takes the highest: what is saved below it would be lost without a word."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state: dict[str, object] = {"n": 1}
        with _checkpointer(pod) as first:
            for step in (np.int64(9), torch.tensor(10), 10):
                first.save(step, state)
            calls = (lambda: first.save(9, state), lambda: first.step(8, state))
            parts = states.flatten(state)
            for call in (*calls, lambda: first.save_parts(9, parts)):
                with pytest.raises(errors.InputError, match=r"step \d after step 10.*count on"):
                    call()
            for step in ("x", 2.5, torch.tensor([11, 12]), None):
                with pytest.raises(errors.InputError, match=r"step is .*whole number"):
                    first.save(step, state)
            assert first.wait(10, "memory")
        with _checkpointer(pod, round_=2) as second:
            assert second.restore(state) == 10
            with pytest.raises(errors.InputError, match="step 9 after step 10"):
                second.step(9, state)
            second.step(10, state)
            second.step(11, state)
            second.save(11, state)


def test_lazy_optimizer_state_grows_the_arena_without_losing_the_sealed_step(tmp_path):
    """The second save has Adam's moments and needs a larger arena; both steps are whole."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state: dict[str, object] = {"model": torch.nn.Linear(1000, 500)}
        state["optimizer"] = torch.optim.Adam(state["model"].parameters())
        with _checkpointer(pod) as checkpointer:
            checkpointer.save(1, state)
            arena = pathlib.Path(pod.settings.volume_path) / "arena" / "0"
            before = (arena / "slot-0").stat().st_size
            state["model"](torch.randn(2, 1000)).sum().backward()
            state["optimizer"].step()
            checkpointer.save(2, state)
            assert (arena / "slot-0").stat().st_size > before
            expected = _flat(state)
        fresh: dict[str, object] = {"model": torch.nn.Linear(1000, 500)}
        fresh["optimizer"] = torch.optim.Adam(fresh["model"].parameters())
        with _checkpointer(pod, round_=2) as second:
            assert second.restore(fresh) == 2
        assert _flat(fresh) == expected


def test_step_saves_when_due_and_reaches_storage(tmp_path):
    """step() saves each `every` steps; the sidecar persists it; the file opens with safetensors.

    An entry of the state that follows it hears of each save, and can ask what is durable.
    """
    with checkpoint_pod.pods(tmp_path, 1, storage=tmp_path / "pvc", checkpoint_every=2) as (pod,):
        following = Following()
        state = {**_fresh(1), "following": following}
        with _checkpointer(pod) as checkpointer:
            checkpointer.restore(state)
            for step in range(1, 5):
                _train(state, 1)
                checkpointer.step(step, state, samples=4)
            assert checkpointer.wait(4, "memory", 10)
            assert checkpointer.wait(4, "durable", 30)
            assert not checkpointer.wait(5, "durable", 0.2)
            assert [is_durable() for is_durable in following.questions] == [True, True]
            sidecar_client.notify(
                identities.state(6), state, SidecarClient(pod.settings.volume_path)
            )
            assert not following.questions[-1]()
            assert not checkpointer.wait(4, "replica", 0.2)
            with pytest.raises(errors.InputError, match="level"):
                checkpointer.wait(4, "paper", 0.2)
        file = tmp_path / "pvc" / "demo" / "step-000000000004-1" / "rank-00000.safetensors"
        tensors = load_file(file)
        assert torch.equal(tensors["model.0.weight"], state["model"][0].weight)


def test_restores_from_storage_when_memory_is_gone_and_falls_back_from_damage(tmp_path):
    """A flipped bit in the newest checkpoint costs a Warning naming it; the older one restores."""
    with checkpoint_pod.pods(tmp_path, 1, storage=tmp_path / "pvc") as (pod,):
        state = _fresh(1)
        with _checkpointer(pod) as checkpointer:
            checkpointer.restore(state)
            checkpointer.save(1, state)
            assert checkpointer.wait(1, "durable", 30)
            expected = _flat(state)
            _train(state, 1)
            checkpointer.save(2, state)
            assert checkpointer.wait(2, "durable", 30)
        pod.kill()
        shutil.rmtree(pod.settings.volume_path)
        damaged = tmp_path / "pvc" / "demo" / "step-000000000002-1" / "rank-00000.safetensors"
        content = bytearray(damaged.read_bytes())
        content[-1] ^= 1
        damaged.write_bytes(content)
        pod.start()
        fresh = _fresh(7)
        with _checkpointer(pod, round_=2) as second:
            assert second.restore(fresh) == 1
            assert second.restored_from == "storage"
            assert _flat(fresh) == expected
            (warning,) = pod.told(names.EVENT_CHECKPOINT_WARNING)
            assert "step-000000000002-1" in warning
            assert "CRC-32C" in warning
            second.save(2, fresh)
            assert second.wait(2, "durable", 30)
        assert (tmp_path / "pvc" / "demo" / "step-000000000002-2" / "manifest.json").exists()


def test_a_replaced_pod_restores_from_its_peer(tmp_path):
    """A pod that lost its memory gets the common step from the other pod, bit-equal."""
    with checkpoint_pod.pods(tmp_path, 2) as two:
        states = [_fresh(1), _fresh(1)]
        _train(states[0], 2)
        _restore_all(two, states, round_=1)
        for rank, pod in enumerate(two):
            with _checkpointer(pod, rank=rank, world_size=2) as checkpointer:
                checkpointer.save(20, states[0])
        two[1].kill()
        shutil.rmtree(two[1].settings.volume_path)
        two[1].start()
        fresh = [_fresh(3), _fresh(4)]
        assert _restore_all(two, fresh, round_=2) == [(20, "memory"), (20, "peer")]
        assert _flat(fresh[0]) == _flat(fresh[1]) == _flat(states[0])


def _restore_all(
    some: list[checkpoint_pod.Pod], states: list[dict[str, object]], *, round_: int, **options: bool
) -> list[tuple[int, str]]:
    found: dict[int, tuple[int, str]] = {}

    def restore(rank: int) -> None:
        settings = trainer_settings.read(
            some[rank].environment(rank=rank, world_size=len(some), round_=round_)
        )
        with Checkpointer(settings=settings, **options) as checkpointer:
            step = checkpointer.restore(states[rank])
            found[rank] = (step, checkpointer.restored_from)

    threads = [threading.Thread(target=restore, args=(rank,)) for rank in range(len(some))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[rank] for rank in range(len(some))]


def test_sharded_ranks_go_back_to_the_step_that_all_hold(tmp_path):
    """Rank 0 sealed 30, rank 1 only 20: both get 20, and 30 is not offered ever again."""
    with checkpoint_pod.pods(tmp_path, 2) as two:
        states = [_fresh(1), _fresh(2)]
        for rank, steps in ((0, (20, 30)), (1, (10, 20))):
            settings = trainer_settings.read(two[rank].environment(rank=rank, world_size=2))
            with Checkpointer(settings=settings, replicated=False) as checkpointer:
                for step in steps:
                    checkpointer.save(step, states[rank])
        for round_ in (2, 3):
            fresh = [_fresh(5), _fresh(6)]
            found = _restore_all(two, fresh, round_=round_, replicated=False)
            assert found == [(20, "memory"), (20, "memory")]
            assert [_flat(item) for item in fresh] == [_flat(item) for item in states]


def test_steps_that_are_told_in_strides_are_saved(tmp_path):
    """The first one past a multiple of ``every``, though none is one; also after a restore."""
    with checkpoint_pod.pods(tmp_path, 1, checkpoint_every=10) as (pod,):
        state = _fresh(1)
        with _checkpointer(pod) as first:
            first.restore(state)
            told = range(7, 40, 8)  # the last of each eight batches, counted from 0
            assert [step for step in told if _is_saved(pod, first, step, state)] == [15, 23, 31]
        with _checkpointer(pod, round_=2) as second:
            assert second.restore(state) == 31
            told = (39, 47, 50)
            assert [step for step in told if _is_saved(pod, second, step, state)] == [47, 50]


def _is_saved(
    pod: checkpoint_pod.Pod, checkpointer: Checkpointer, step: int, state: dict[str, object]
) -> bool:
    checkpointer.step(step, state)
    checkpointer.finish()
    return step in {
        seal.state.step for seal in Arena(pod.settings.volume_path / "arena" / "0").sealed()
    }


def test_a_second_training_in_a_process_is_refused(tmp_path):
    """As of a cross-validation: its folds would take each other's states after a restart."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        with _checkpointer(pod) as fold:
            assert fold.restore(_fresh(1)) == 0
            fold.save(3, _fresh(1))
        with _checkpointer(pod) as fold:
            with pytest.raises(errors.CheckpointError, match="another Checkpointer"):
                fold.restore(_fresh(2))
            with pytest.raises(errors.InputError, match="step 1 after step 3"):
                fold.save(1, _fresh(2))
        with _checkpointer(pod, round_=2) as fold:  # has nothing to do any more
            assert fold.restore(_fresh(1)) == 3
        with (
            _checkpointer(pod, round_=2) as fold,
            pytest.raises(errors.CheckpointError, match="another Checkpointer"),
        ):
            fold.restore(_fresh(2))


@pytest.mark.parametrize("restores", [True, False])
def test_a_second_checkpointer_of_a_process_saves_nothing(tmp_path, restores):
    """As of averaged weights: the first one's restore would bring them back."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        first, second = _checkpointer(pod), _checkpointer(pod)
        files = DirectoryCheckpointer(settings=trainer_settings.read(pod.environment()))
        state, averaged = {"value": torch.full((3,), 3.0)}, {"value": torch.full((3,), 0.03)}
        if restores:
            assert first.restore(state) == 0
        first.step(1, state)
        first.save(2, state)
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("x")
        for save in (
            lambda: second.save(2, averaged),
            lambda: second.step(10, averaged),
            lambda: files.save(3, tmp_path / "folder"),
            lambda: second.restore(averaged),
        ):
            with pytest.raises(errors.CheckpointError, match="another Checkpointer"):
                save()
        first.save(3, state)
        for checkpointer in (first, second, files):
            checkpointer.close()
        found = {"value": torch.zeros(3)}
        with _checkpointer(pod, round_=2) as again:
            assert again.restore(found) == 3
        assert found["value"].tolist() == [3.0] * 3


def test_sharded_step_is_committed_when_every_rank_is_durable(tmp_path):
    """The coordinator names one step; both pods persist it; the manifest has both files."""
    storage = tmp_path / "pvc"
    with checkpoint_pod.pods(tmp_path, 2, storage=storage) as two:
        states = [_fresh(1), _fresh(2)]
        _restore_all(two, states, round_=1, replicated=False)
        for rank, pod in enumerate(two):
            settings = trainer_settings.read(pod.environment(rank=rank, world_size=2))
            with Checkpointer(settings=settings, replicated=False) as checkpointer:
                checkpointer.save(10, states[rank])
        folder = storage / "demo" / "step-000000000010-1"
        eventually((folder / "manifest.json").exists)
        for pod in two:
            pod.kill()
            shutil.rmtree(pod.settings.volume_path)
        for pod in two:
            pod.start()
        fresh = [_fresh(5), _fresh(6)]
        found = _restore_all(two, fresh, round_=2, replicated=False)
        assert found == [(10, "storage"), (10, "storage")]
        assert [_flat(item) for item in fresh] == [_flat(item) for item in states]


def test_a_killed_sidecar_goes_on_where_it_was(tmp_path):
    """Saves go on without a sidecar; the next one finds the seal, restores and persists it."""
    with checkpoint_pod.pods(tmp_path, 1, storage=tmp_path / "pvc") as (pod,):
        state = _fresh(1)
        with _checkpointer(pod) as checkpointer:
            checkpointer.restore(state)
            checkpointer.save(1, state)
            pod.kill()
            _train(state, 1)
            state["epoch"] = 0
            state["history"] = [1.0]
            checkpointer.save(2, {**state, "optimizer": {}, "schedule": {}})
        pod.start()
        assert pod.told(names.EVENT_RESTORED) == []
        folder = tmp_path / "pvc" / "demo" / "step-000000000002-1"
        eventually((folder / "manifest.json").exists)
        with _checkpointer(pod, round_=2) as second:
            assert second.restore({"model": _fresh(9)["model"]}) == 2


def test_slots_that_are_there_are_not_asked_for(tmp_path):
    """A process that comes while the sidecar is away saves into those of the one before it."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state = _fresh(1)
        with _checkpointer(pod) as first:
            first.restore(state)
            first.save(1, state)
        pod.kill()
        with _checkpointer(pod, round_=2) as second:
            second.save(2, state)
            second.finish()
        steps = [
            seal.state.step for seal in Arena(pod.settings.volume_path / "arena" / "0").sealed()
        ]
        assert steps == [2, 1]


def test_draining_saves_and_leaves(tmp_path):
    """At the drain step the state is sealed and the process leaves with 143; 0 means go on."""
    with checkpoint_pod.pods(tmp_path, 1, checkpoint_every=100) as (pod,):
        drain = pod.settings.volume_path / names.DRAIN_FILE
        state = _fresh(1)
        checkpointer = _checkpointer(pod)
        checkpointer.restore(state)
        drain.write_bytes((0).to_bytes(8, "little"))
        checkpointer.step(1, state)
        drain.write_bytes((3).to_bytes(8, "little"))
        checkpointer.step(2, state)
        with pytest.raises(SystemExit) as left:
            checkpointer.step(3, state)
        assert left.value.code == names.EXIT_DRAINED
        with _checkpointer(pod, round_=2) as second:
            assert second.restore(_fresh(2)) == 3


def test_outside_rover_it_does_nothing_and_says_so_once(caplog):
    """The same lines run in a plain script; one warning tells why nothing is saved."""
    state = _fresh(1)
    with (
        caplog.at_level(logging.WARNING, "rover_kf"),
        Checkpointer(settings=trainer_settings.read({})) as checkpointer,
    ):
        assert checkpointer.restore(state) == 0
        checkpointer.step(1, state)
        checkpointer.save(2, state)
        assert not checkpointer.wait(2, "memory", 1)
    assert len(caplog.records) == 1
    assert names.ENV_HOME in caplog.text
    assert "rover-kf train" in caplog.text


def test_steps_are_counted_from_1(tmp_path):
    """0 stands for a training that has not begun."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,), _checkpointer(pod) as checkpointer:
        for call in (checkpointer.save, checkpointer.step):
            for step in (0, -1):
                with pytest.raises(errors.InputError, match=f"step is {step}; count steps from 1"):
                    call(step, {"epoch": 1})


def test_a_missing_sidecar_is_named(tmp_path, monkeypatch):
    """ROVER_HOME without a sidecar is an error that says where it was looked for."""
    for module in ("restore_client", "checkpointer"):
        monkeypatch.setattr(f"rover_kf.trainer.{module}.PATIENCE_SECONDS", 0.2)
    settings = trainer_settings.read({names.ENV_HOME: str(tmp_path)})
    with Checkpointer(settings=settings) as checkpointer:
        with pytest.raises(errors.SidecarUnavailable, match=r"sidecar\.sock"):
            checkpointer.restore(_fresh(1))
        with pytest.raises(errors.SidecarUnavailable, match=names.SIDECAR_CONTAINER):
            checkpointer.save(1, _fresh(1))


def test_a_state_that_does_not_fit_is_refused_with_the_size_to_set(tmp_path):
    """ArenaTooSmall has numbers and the annotation; what was sealed before stays restorable."""
    with checkpoint_pod.pods(tmp_path, 1, arena_bytes=8 << 20) as (pod,):
        with _checkpointer(pod) as checkpointer:
            checkpointer.save(1, {"a": torch.ones(10)})
            with pytest.raises(
                errors.ArenaTooSmall, match=r"rover-kf\.io/checkpoint\.arena to 11Mi"
            ):
                checkpointer.save(2, {"a": torch.ones(5 << 18)})
        fresh = {"a": torch.zeros(10)}
        with _checkpointer(pod, round_=2) as second:
            assert second.restore(fresh) == 1
        assert torch.equal(fresh["a"], torch.ones(10))


def test_plain_data_that_could_not_be_read_again_is_refused(tmp_path, monkeypatch):
    """It says where to put it; what was sealed before stays, and a state that fits is saved."""
    monkeypatch.setattr(snapshot, "_MAX_HEADER_BYTES", 100_000)
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        with _checkpointer(pod) as checkpointer:
            state: dict[str, object] = {"a": torch.ones(10), "replay": b"x"}
            checkpointer.save(1, state)
            state["replay"] = bytes(80_000)
            with pytest.raises(errors.UnsupportedState, match=r"plain data .*torch\.frombuffer"):
                checkpointer.save(2, state)
            arena = Arena(pathlib.Path(pod.settings.volume_path) / "arena" / "0")
            assert [seal.state.step for seal in arena.sealed()] == [1]
            state["replay"] = bytes(70_000)
            checkpointer.save(3, state)
        fresh: dict[str, object] = {"a": torch.zeros(10), "replay": b""}
        with _checkpointer(pod, round_=2) as second:
            assert second.restore(fresh) == 3
        assert fresh["replay"] == bytes(70_000)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("grown", [None, torch.zeros(0, 3), torch.zeros(2_000_000)])
def test_saves_after_one_inside_inference_mode_go_on(tmp_path, overlap, grown):
    """As a validation loop makes it: with a new layout, and with slots that had to grow."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        settings = trainer_settings.read(pod.environment())
        state = _fresh(1)
        with Checkpointer(settings=settings, overlap=overlap) as checkpointer:
            for step in range(1, 6):
                _train(state, 1)
                if step == 2 and grown is not None:
                    state["grown"] = grown
                with torch.inference_mode(step in {1, 2}):
                    checkpointer.save(step, state)
            checkpointer.finish()
            expected = _flat(state)
        fresh = _fresh(2)
        with _checkpointer(pod, round_=2) as second, torch.inference_mode():
            assert second.restore(fresh) == 5
        assert _flat(fresh) == expected
        _train(fresh, 1)


def test_storage_that_cannot_be_written_costs_a_warning_only(tmp_path):
    """A checkpoint path that is a file: Warning with the reason; memory checkpoints go on."""
    (tmp_path / "pvc").write_text("not a folder")
    with checkpoint_pod.pods(tmp_path, 1, storage=tmp_path / "pvc") as (pod,):
        with _checkpointer(pod) as checkpointer:
            checkpointer.save(1, {"a": torch.ones(3)})
            eventually(lambda: pod.told(names.EVENT_CHECKPOINT_WARNING))
            checkpointer.save(2, {"a": torch.ones(3)})
        assert "pvc" in pod.told(names.EVENT_CHECKPOINT_WARNING)[-1]
        with _checkpointer(pod, round_=2) as second:
            assert second.restore({"a": torch.zeros(3)}) == 2


@pytest.mark.parametrize("variable", ["RANK", "ROVER_CHECKPOINT_EVERY"])
def test_wrong_variables_are_named(variable):
    """A variable that is no number is refused by its name."""
    with pytest.raises(errors.InputError, match=variable):
        trainer_settings.read({variable: "many"})
    with pytest.raises(errors.InputError, match="every"):
        Checkpointer(every=0, settings=trainer_settings.read({}))


def test_the_best_checkpoint_stays_over_restarts(tmp_path):
    """By what the script measured; those divided by a number stay, too; a restarted coordinator
    decides the same from what is on storage."""
    rules = {"checkpoint_keep": 1, "checkpoint_keep_best": "accuracy:max:1"}
    rules |= {"checkpoint_keep_every": 4, "checkpoint_every": 1}
    accuracy = {1: 0.2, 2: 0.9, 3: 0.5, 4: float("nan"), 5: torch.tensor(0.1), 6: 0.3}
    with checkpoint_pod.pods(tmp_path / "pods", 1, storage=tmp_path / "pvc", **rules) as (pod,):
        for begin in (1, 4):
            if begin > 1:
                pod.kill()
                pod.start()
            state = _fresh(1)
            with _checkpointer(pod, round_=begin) as checkpointer:
                assert checkpointer.restore(state) == begin - 1
                for step in range(begin, begin + 3):
                    checkpointer.step(step, state, metrics={"accuracy": accuracy[step]})
                    assert checkpointer.wait(step, timeout=30)
        storage = DirectoryStorage(tmp_path / "pvc" / "demo")
        left = eventually(lambda: _stored(storage, {2, 4, 6}))
    assert left == {2: {"accuracy": 0.9}, 4: {}, 6: {"accuracy": 0.3}}


def _stored(storage: DirectoryStorage, steps: set[int]) -> dict[int, dict[str, float]]:
    """What was measured, by step, once these steps are all that is left."""
    whole = storage.complete_folders()
    if {folder.step for folder in whole} != steps:
        return {}  # what retention removes cannot be loaded
    return {folder.step: storage.load(folder).metrics for folder in whole}


def _draining_rank(rank: int, environments: list[dict[str, str]], store: str) -> None:
    os.environ.update(environments[rank])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    model = torch.nn.BatchNorm1d(2)
    model.running_mean.fill_(rank + 1.0)
    state = {"model": model}
    checkpointer = Checkpointer(every=10)
    checkpointer.restore(state)
    checkpointer.step(2, state)
    with pytest.raises(SystemExit):
        checkpointer.step(3, state)


def test_running_statistics_are_agreed_on_before_a_drain(tmp_path):
    """The step is not due: it is saved because the world ends, perhaps without rank 0's pod."""
    with checkpoint_pod.pods(tmp_path, 2) as pods:
        for pod in pods:
            drain = pod.settings.volume_path / names.DRAIN_FILE
            drain.parent.mkdir(parents=True, exist_ok=True)
            drain.write_bytes((3).to_bytes(8, "little"))
        environments = [pod.environment(rank=r, world_size=2) for r, pod in enumerate(pods)]
        torch.multiprocessing.spawn(_draining_rank, (environments, str(tmp_path / "store")), 2)
        for pod in pods:
            arena = Arena(pod.settings.volume_path / "arena" / "0")
            (seal,) = [seal for seal in arena.sealed() if seal.state.step == 3]
            content = arena.slot_path(seal.slot).read_bytes()[: seal.length]
            found = tensor_views.tensor_views(bytearray(content), snapshot.read(content).tensors)
            assert found["model.running_mean"].tolist() == [1.0, 1.0]

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Copies that go on while training computes: bit-equal, waited for, never lost."""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

from rover_kf import errors
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.checkpoint.format import snapshot
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.staging import copy_batches
from rover_kf.trainer.staging.copy_threads import SharedWork
from rover_kf.trainer.state import flatten as states
from tests.support.pods import checkpoint_pod
from tests.support.waiting import eventually

pytestmark = pytest.mark.torch

STEPS = 6


def _checkpointer(pod: checkpoint_pod.Pod, **arguments: object) -> Checkpointer:
    settings = trainer_settings.read(pod.environment())
    return Checkpointer(settings=settings, **{"overlap": True, **arguments})


def _fresh(kind: str = "AdamW") -> dict[str, object]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    table = torch.zeros(1000, dtype=torch.int32)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "table": table, "n": 0}


def _backward(state: dict[str, object]) -> None:
    state["optimizer"].zero_grad()
    state["model"](torch.randn(8, 64)).square().mean().backward()


def _bytes_of(state: dict[str, object]) -> dict[str, bytes]:
    return {name: t.numpy().tobytes() for name, t in states.flatten(state).tensors.items()}


def _arena(pod: checkpoint_pod.Pod) -> Arena:
    return Arena(pathlib.Path(pod.settings.volume_path) / "arena" / "0")


def _sealed(pod: checkpoint_pod.Pod) -> tuple[int, dict[str, bytes], str]:
    """Newest sealed step, its tensors' bytes and its plain data."""
    arena = _arena(pod)
    seal = arena.sealed()[0]
    with arena.pin(seal) as pin, mmap.mmap(pin.descriptor, seal.length, prot=mmap.PROT_READ) as raw:
        data = bytes(raw)
    found = snapshot.read(data)
    tensors = {name: data[place.begin : place.end] for name, place in found.tensors.items()}
    return seal.state.step, tensors, found.metadata[snapshot.STATE_KEY]


@contextlib.contextmanager
def _held(checkpointer: Checkpointer):
    """Keep the copy's thread from working: then everything is copied as late as it can be."""
    go = threading.Event()
    checkpointer._stager._overlap._threads.submit(SharedWork([lambda: go.wait(60)]))
    try:
        yield
    finally:
        go.set()


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad"])
def test_what_is_sealed_is_the_state_at_the_call(tmp_path, kind):
    """Buffers, tables, rates and gradients change after save(); parameters at the next step."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,), _checkpointer(pod) as checkpointer:
        state = _fresh(kind)
        checkpointer.restore(state)
        late = 0
        for step in range(1, STEPS + 1):
            _backward(state)
            state["optimizer"].step()
            state["n"] = step
            expected, plain = _bytes_of(state), states.flatten(state).metadata
            with _held(checkpointer):
                checkpointer.save(step, state)
                late += not checkpointer._stager._overlap.is_done
                _backward(state)  # BatchNorm's figures change
                state["table"] += 1
                state["schedule"].step()
                state["n"] = -1
                state["optimizer"].step()
            assert _sealed(pod) == (step, expected, plain[snapshot.STATE_KEY])
        assert late == STEPS
        assert (checkpointer._stager.issued, checkpointer._stager.sealed) == (STEPS, STEPS)
        print(f"{kind}: {STEPS} of {STEPS} steps bit-equal, {late} copied after save() returned")


def test_it_comes_back_through_restore(tmp_path):
    """A successor has the very bytes that the overlapped copy took."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state = _fresh()
        with _checkpointer(pod) as checkpointer:
            _backward(state)
            state["optimizer"].step()
            expected = _bytes_of(state)
            with _held(checkpointer):
                checkpointer.save(1, state)
                assert not _arena(pod).sealed()
                _backward(state)
                state["optimizer"].step()
            assert checkpointer.wait(1, "memory")
        successor = _fresh()
        with _checkpointer(pod) as second:
            assert second.restore(successor) == 1
        assert _bytes_of(successor) == expected


def test_a_change_under_the_copy_is_an_error_at_the_next_call(tmp_path):
    """Parameters that something else than an optimizer changes spoil the step; it is not sealed."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state = _fresh()
        checkpointer = _checkpointer(pod)
        checkpointer.save(1, state)
        calls = {
            "save": lambda: checkpointer.save(3, state),
            "step": lambda: checkpointer.step(3, state),
            "wait": lambda: checkpointer.wait(2),
            "close": checkpointer.close,
        }
        for call in ("save", "step", "wait", "close"):
            checkpointer._stager.finish()
            with _held(checkpointer):
                checkpointer.save(2, state)
                with torch.no_grad():
                    state["model"][0].weight.clamp_(-0.01, 0.01)
                checkpointer._stager._overlap.wait()
            match = r"step 2 is not saved: model\.0\.weight changed in place.*overlap=False"
            with pytest.raises(errors.CheckpointError, match=match):
                calls[call]()
            assert [seal.state.step for seal in _arena(pod).sealed()] == [1]
        saver = checkpointer._stager
        print(f"{saver.issued} saves, {saver.sealed} sealed, 4 raised")
        assert (saver.issued, saver.sealed) == (5, 1)


def test_close_next_save_and_drain_wait(tmp_path):
    """None of them leaves a copy behind unfinished."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        state = _fresh()
        checkpointer = _checkpointer(pod, every=1)
        for step in (1, 2):
            with _held(checkpointer):
                checkpointer.save(step, state)
        assert 1 in [seal.state.step for seal in _arena(pod).sealed()]
        with _held(checkpointer):
            checkpointer.save(3, state)
            checkpointer._stager.finish()
            assert _arena(pod).sealed()[0].state.step == 3
        (pod.settings.volume_path / "run" / "drain-at").write_bytes((4).to_bytes(8, "little"))
        with pytest.raises(SystemExit) as left:
            checkpointer.step(4, state)
        assert left.value.code == 143
        assert _arena(pod).sealed()[0].state.step == 4
        assert not torch_optimizer._global_optimizer_pre_hooks


TERMINATED = """
import os, signal, sys, threading
import torch
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.staging.copy_threads import SharedWork

state = {"model": torch.nn.Linear(512, 512)}
state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)
checkpointer = Checkpointer(overlap=True)
checkpointer._stager._overlap._threads.submit(SharedWork([threading.Event().wait]))
checkpointer.save(7, state)
os.kill(os.getpid(), signal.SIGTERM)
print("not reached")
"""


IN_A_PIECE = """
import os, signal
import torch
from rover_kf.trainer.staging import copy_batches, overlap
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.staging.copy_threads import CopyThreads

class Away(CopyThreads):
    def submit(self, work):
        pass  # the thread gets no core: the optimizer's step makes the copy

copy, state = copy_batches.copy, {"model": torch.nn.Linear(2048, 2048)}
state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)

def interrupted(targets, sources):
    os.kill(os.getpid(), signal.SIGTERM)
    copy(targets, sources)

overlap.CopyThreads, copy_batches.copy = Away, interrupted
checkpointer = Checkpointer(overlap=True)
checkpointer.save(7, state)
state["optimizer"].step()
print("not reached")
"""


def test_sigterm_in_the_middle_of_a_piece_waits_for_the_copy_as_well(tmp_path):
    """It interrupts the very thread that it would wait for."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        done = _run(IN_A_PIECE, pod)
        assert (done.returncode, done.stdout) == (-signal.SIGTERM, b""), done.stderr
        assert [seal.state.step for seal in _arena(pod).sealed()] == [7]


SAVED_BY_A_HANDLER = """
import itertools, os, signal, sys
import torch
from rover_kf import errors
from rover_kf.trainer.staging import copy_batches, overlap
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.staging.copy_threads import CopyThreads

class Away(CopyThreads):
    def submit(self, work):
        pass  # the thread gets no core: the optimizer's step makes the copy

copy, state = copy_batches.copy, {"model": torch.nn.Linear(2048, 2048)}
state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)

calls = itertools.count()

def interrupted(targets, sources):
    if next(calls) == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
    copy(targets, sources)

def handler(*_):
    for call in (lambda: checkpointer.save(8, state), checkpointer.finish, checkpointer.close):
        try:
            call()
        except errors.CheckpointError as told:
            print("in the middle of a copy" in str(told))

signal.alarm(60)  # instead of waiting for ever
signal.signal(signal.SIGUSR1, handler)
overlap.CopyThreads, copy_batches.copy = Away, interrupted
checkpointer = Checkpointer(overlap=sys.argv[1] == "True")
checkpointer.save(7, state)
state["optimizer"].step()
print(checkpointer._stager.sealed)
checkpointer.save(9, state)
"""


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_signal_handler_that_saves_in_the_middle_of_a_copy_is_told_so_at_once(tmp_path, overlaps):
    """The copy goes on only after the handler: to wait for it would be to wait for ever."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        done = _run(SAVED_BY_A_HANDLER, pod, str(overlaps))
        told = b"True\nTrue\nTrue\n1\n"
        assert (done.returncode, done.stdout) == (0, told), done.stderr
        assert [seal.state.step for seal in _arena(pod).sealed()] == [9, 7]


@pytest.mark.parametrize("overlaps", [True, False])
def test_ctrl_c_while_training_waits_for_a_copy_is_told_there(tmp_path, monkeypatch, overlaps):
    """A step that was being copied beside training is sealed by the next wait."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        checkpointer = _checkpointer(pod, overlap=overlaps)
        state = _fresh()
        _backward(state)
        interrupts, copy = [KeyboardInterrupt()], copy_batches.copy

        def interrupted(targets: object, sources: object) -> None:
            if interrupts and threading.current_thread() is threading.main_thread():
                raise interrupts.pop()
            copy(targets, sources)

        expected = _bytes_of(state)
        checkpointer._stager._threads.close()  # so that it is this thread which copies
        with _held(checkpointer):
            if overlaps:
                checkpointer.save(1, state)
            monkeypatch.setattr(copy_batches, "copy", interrupted)
            with pytest.raises(KeyboardInterrupt):
                state["optimizer"].step() if overlaps else checkpointer.save(1, state)
            assert not _arena(pod).sealed()
            if not overlaps:
                checkpointer.save(1, state)
            state["optimizer"].step()
        assert _sealed(pod)[:2] == (1, expected)
        checkpointer.save(2, state)
        checkpointer.close()
        assert _arena(pod).sealed()[0].state.step == 2


def _run(
    script: str, pod: checkpoint_pod.Pod, *arguments: str
) -> subprocess.CompletedProcess[bytes]:
    root = pathlib.Path(__file__).parents[4]
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **pod.environment(), "PYTHONPATH": str(root)},
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_sigterm_finishes_the_copy_first(tmp_path):
    """A process that is asked to end leaves the step that it was saving, and ends by the signal."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        done = _run(TERMINATED, pod)
        assert (done.returncode, done.stdout) == (-signal.SIGTERM, b""), done.stderr
        assert [seal.state.step for seal in _arena(pod).sealed()] == [7]


FORKED = """
import os, sys, threading
import torch
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.staging.copy_threads import SharedWork

state = {"model": torch.nn.Linear(512, 512)}
state["optimizer"] = torch.optim.SGD(state["model"].parameters(), lr=0.1)
checkpointer = Checkpointer(overlap=True)
go = threading.Event()
checkpointer._stager._overlap._threads.submit(SharedWork([go.wait]))
checkpointer.save(7, state)
child = os.fork()
if child == 0:
    state["optimizer"].step()
    checkpointer.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
unsealed = not checkpointer._stager.sealed
go.set()
state["optimizer"].step()
print(status, unsealed, checkpointer._stager.sealed)
"""


def test_a_forked_child_neither_waits_nor_copies(tmp_path):
    """A data loader's worker that is forked in mid-copy leaves the copy to its parent."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        done = _run(FORKED, pod)
        assert (done.returncode, done.stdout) == (0, b"0 True 1\n"), done.stderr
        assert [seal.state.step for seal in _arena(pod).sealed()] == [7]


def _swap(model: torch.nn.Module, value: torch.Tensor) -> None:
    """Exchange a parameter by its pointer, as averaged weights are."""
    model[0].weight.data = value


CHANGES = {
    "an average swapped in": lambda model: _swap(model, torch.zeros_like(model[0].weight)),
    "a copy into .data": lambda model: model[0].weight.data.copy_(torch.zeros(256, 64)),
    "an array of NumPy": lambda model: model[0].weight.detach().numpy().fill(0),
    "an interpolation": lambda model: model[0].weight.data.lerp_(torch.zeros(256, 64), 0.5),
}
"""What diffusers' EMAModel, schedule-free optimizers, Lookahead and scripts do between steps."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_save_shows_its_moment_unless_overlap_is_requested(tmp_path, change):
    """Whatever changes the weights after save() has returned."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,), _checkpointer(pod, overlap=False) as plain:
        state = _fresh()
        for step in (1, 2, 3):
            _backward(state)
            state["optimizer"].step()
            expected = _bytes_of(state)
            plain.save(step, state)
            CHANGES[change](state["model"])
            number, tensors, _ = _sealed(pod)
            assert (number, tensors) == (step, expected)
            assert _bytes_of(state) != expected


def test_ranks_with_states_of_their_own_copy_at_once_also_with_overlap(tmp_path):
    """A rank may be a step ahead of another one, which still copies: both need a common step."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,):
        settings = trainer_settings.read(pod.environment(world_size=2))
        with Checkpointer(settings=settings, overlap=True, replicated=False) as checkpointer:
            checkpointer.save(1, _fresh())
            assert checkpointer._stager._overlap.is_done
            assert _sealed(pod)[0] == 1


def test_slots_are_there_before_the_first_save(tmp_path):
    """restore() asks for them in the background, with room for the moments that come later."""
    with checkpoint_pod.pods(tmp_path, 1) as (pod,), _checkpointer(pod) as checkpointer:
        state = _fresh()
        checkpointer.restore(state)
        size = eventually(_arena(pod).slot_bytes, what="slots")
        _backward(state)
        state["optimizer"].step()
        checkpointer.save(1, state)
        assert _arena(pod).slot_bytes() == size
        assert checkpointer.wait(1, "memory")

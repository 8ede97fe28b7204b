# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf checkpoint diff``: every kind of difference, and nothing else."""

from __future__ import annotations

import functools
import itertools
import json
import tracemalloc
from unittest import mock

import pytest
import torch

from rover_kf.checkpoint.resharding import assembly
from rover_kf.checkpoint.storage.factory import open_storage
from rover_kf.checkpoint_tools import diff as checkpoint_tools_diff
from rover_kf.checkpoint_tools.consolidated_state import open_state
from rover_kf.trainer.state.flatten import DTYPES, dtype_name
from tests.support.states import identities, stored_states

pytestmark = pytest.mark.torch

STATE = {
    "w": torch.arange(12, dtype=torch.float32).reshape(4, 3),
    "n": torch.tensor([1.0, float("nan"), float("inf")]),
    "gone": torch.ones(2),
    "epoch": 3,
    "lr": [0.1, {"warm": True}],
    "nan": float("nan"),
}


@pytest.fixture
def diff(tmp_path, call):
    """Two states' differences: by name the kind, and all that was told."""

    steps = itertools.count(1)

    def run(a, b, world=1):
        storage = open_storage(str(tmp_path), "demo")
        folders = [
            stored_states.store(
                storage, next(steps), [state] * world if isinstance(state, dict) else state
            )
            for state in (a, b)
        ]
        locations = [folder.location for folder in folders]
        code, out, _ = call("diff", *locations, "--json")
        told = json.loads(out)
        assert (code == 0) == told["equal"] == (told["differences"] == [])
        assert call("diff", *locations)[0] == code
        return {(item["name"], item["rank"]): item for item in told["differences"]}

    return run


def test_the_same_state_is_equal_whoever_wrote_it(three, call):
    """By one rank, by three that split it, by two that shard it; bit by bit, nan included."""
    steps = [three.folder(1), three.folder(2), three.folder(3, 2)]
    for a in steps:
        for b in steps:
            code, out, _ = call("diff", a, b)
            assert code == 0
            assert "are equal bit by bit" in out
    assert "(written by 1 and 3 ranks)" in call("diff", *steps[:2])[1]


def test_values_that_differ_are_counted_and_measured(diff):
    """How many elements, and by how much at most; -0.0 is not 0.0, nan is nan."""
    changed = STATE["w"].clone()
    changed[0, 0], changed[3, 2] = -0.0, 11.5
    found = diff(STATE, STATE | {"w": changed})
    assert found.keys() == {("w", 0)}
    assert found["w", 0]["kind"] == "values"
    assert found["w", 0]["comparison"] == {
        "elements": 12, "differing": 2, "max_difference": 0.5, "not_finite": 0
    }  # fmt: skip
    found = diff(STATE, STATE | {"n": torch.tensor([float("nan"), float("nan"), 2.0])})
    assert found["n", 0]["comparison"] == {
        "elements": 3, "differing": 2, "max_difference": None, "not_finite": 2
    }  # fmt: skip


def test_tensors_that_cannot_be_compared_are_named(diff):
    """Only here, only there, another type, another shape."""
    other = {**STATE, "w": STATE["w"].reshape(3, 4), "n": STATE["n"].double(), "new": torch.ones(1)}
    del other["gone"]
    found = diff(STATE, other)
    told = {name: (item["kind"], item["a"], item["b"]) for (name, _), item in found.items()}
    assert told == {
        "w": ("type or shape", "F32 [4, 3]", "F32 [3, 4]"),
        "n": ("type or shape", "F32 [3]", "F64 [3]"),
        "gone": ("only in A", "F32 [2]", ""),
        "new": ("only in B", "", "F32 [1]"),
    }


def test_plain_values_are_compared_with_their_types(diff):
    """3 is not 3.0, a list is not a tuple; nan equals itself."""
    found = diff(STATE, {**STATE, "epoch": 3.0, "lr": [0.1, {"warm": False}], "more": None})
    told = {name: (item["kind"], item["a"], item["b"]) for (name, _), item in found.items()}
    assert told == {
        "epoch": ("values", "3", "3.0"),
        "lr.1.warm": ("values", "True", "False"),
        "more": ("only in B", "", "None"),
    }
    found = diff(STATE, {**STATE, "lr": (0.1, {"warm": True})})
    assert {name for name, _ in found} == {"lr.0", "lr.1.warm"}


def test_every_ranks_own_is_compared(diff):
    """What only rank 2 has otherwise is a difference of rank 2's."""
    one = [stored_states.training(1, rank=rank) for rank in range(3)]
    two = [*one[:2], one[2] | {"generator": torch.zeros(4, dtype=torch.uint8), "rank": 7}]
    found = diff(one, two)
    assert found.keys() == {("generator", 2), ("rank", 2)}
    assert found["generator", 2]["comparison"]["differing"] == 4


def test_the_files_of_all_ranks_are_put_together_once(tmp_path, call, monkeypatch):
    """Not once for each rank: of hundreds that would be the square of it."""
    storage = open_storage(str(tmp_path), "demo")
    for step in (1, 2):
        ranks = [{"w": torch.ones(4), "rank": rank, "step": step} for rank in range(9)]
        stored_states.store(storage, step, ranks)
    plan = mock.Mock(wraps=assembly.plan)
    monkeypatch.setattr(assembly, "plan", plan)
    code, out, _ = call("diff", storage.folder(identities.state(1)).location, tmp_path / "demo")
    assert (code, out.count("value step")) == (1, 9)
    of_all = [asked for asked in plan.call_args_list if len(asked.args[0]) > 1]
    assert len(of_all) == 2


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex128], ids=str)
def test_every_type_is_measured_as_torch_measures_it(dtype):
    """Of random bits: differing elements, the largest finite difference."""
    generator = torch.Generator().manual_seed(5)
    width, top = torch.empty(0, dtype=dtype).element_size(), 2 if dtype is torch.bool else 256
    a, b = (torch.randint(0, top, (997 * width,), generator=generator, dtype=torch.uint8)
            for _ in range(2))  # fmt: skip
    b[: 100 * width] = a[: 100 * width]
    data = [memoryview(bytearray(part.tolist())) for part in (a, b)]
    found = checkpoint_tools_diff.compare(*data, dtype_name(dtype), width)
    there = (a.view(-1, width) != b.view(-1, width)).any(dim=1)
    assert found.differing == int(there.sum()) > 400
    left, right = (part.view(dtype)[there] for part in (a, b))
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        distance = (left.to(wide) - right.to(wide)).abs()
        finite = distance[distance.isfinite()]
        assert found.not_finite == len(distance) - len(finite)
        assert found.max_difference == pytest.approx(float(finite.max()), rel=1e-15)
    else:
        pairs = zip(left.tolist(), right.tolist(), strict=True)
        assert found.max_difference == float(max(abs(x - y) for x, y in pairs))


def test_a_type_without_meaning_is_compared_by_its_bits():
    """Counted, not measured."""
    found = checkpoint_tools_diff.compare(
        memoryview(b"abcdef"), memoryview(b"abcxef"), "something", 3
    )
    assert found == checkpoint_tools_diff.TensorComparison(
        elements=2, differing=1, max_difference=None, not_finite=0
    )


def test_memory_does_not_grow_with_the_state(tmp_path, monkeypatch):
    """Two states of 16 MiB are compared in batches of 1 MiB each."""
    storage = open_storage(str(tmp_path), "demo")
    state = {f"t{number}": torch.full((1 << 18,), 0.5 * number) for number in range(16)}
    state["last"] = torch.zeros(1)
    a = stored_states.store(storage, 1, [state])
    b = stored_states.store(storage, 2, [state | {"last": torch.ones(1)}] * 2)
    small = functools.partial(checkpoint_tools_diff.batch_tensors, max_bytes=1 << 20)
    monkeypatch.setattr(checkpoint_tools_diff, "batch_tensors", small)
    opened = [open_state(storage, folder) for folder in (a, b)]
    total = opened[0].assembly.length
    tracemalloc.start()
    try:
        found = list(checkpoint_tools_diff.diff_states(*opened))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    print(f"peak of {peak / 2**20:.1f} MiB for two states of {total / 2**20:.1f} MiB")
    assert [(item.name, item.rank) for item in found] == [("last", 0)]
    assert peak < total / 2

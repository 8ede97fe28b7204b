# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Modules whose way of loading depends on the version that saved load as by torch itself."""

from __future__ import annotations

import contextlib
import json
import mmap

import pytest
import torch
from torch.ao.quantization import MinMaxObserver

from rover_kf import errors
from rover_kf.checkpoint.format import snapshot
from rover_kf.checkpoint.resharding import assembly, write_shares
from rover_kf.trainer.restore import load
from rover_kf.trainer.staging import copy_threads
from rover_kf.trainer.state import flatten, tensor_views
from rover_kf.trainer.state.flatten_cache import FlattenCache
from rover_kf.trainer.state.module_versions import KEY
from tests.support.pods import trainer_slot

pytestmark = pytest.mark.torch


class _Upgraded(torch.nn.Module):
    """Version 1 kept the logarithm."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        if local_metadata.get("version") is None or local_metadata["version"] < 2:
            state_dict[prefix + "scale"] = state_dict[prefix + "scale"].exp()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class _First(torch.nn.Module):
    """What _Upgraded was at version 1."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(3))


class _Strict(torch.nn.Module):
    """Refuses versions that it does not know, as MNASNet of torchvision does."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        if local_metadata.get("version") not in {1, 2}:
            message = f"version {local_metadata.get('version')}"
            raise ValueError(message)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class _Holder:
    """No module; its state dict is one's."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def state_dict(self) -> dict[str, object]:
        return self.module.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self.module.load_state_dict(state_dict)


MAKE = {
    "an observer": lambda: MinMaxObserver(eps=2**-12),
    "upgraded": _Upgraded,
    "strict": _Strict,
    "inside": lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), _Upgraded(), _Strict()),
    "in parallel": lambda: torch.nn.DataParallel(_Upgraded()),
    "held": lambda: _Holder(torch.nn.Sequential(_Upgraded(), torch.nn.Linear(2, 2))),
}


def _load(buffer: mmap.mmap, live: dict[str, object], without: str = "") -> None:
    found = snapshot.read(memoryview(buffer))
    metadata = {key: text for key, text in found.metadata.items() if key != without}
    tensors = tensor_views.tensor_views(buffer, found.tensors)
    with contextlib.closing(copy_threads.CopyThreads(0)) as helping:
        load.StateLoader(live, metadata, tensors, threads=helping).finish()


def _saved(content: dict[str, object], times: int = 1) -> mmap.mmap:
    recall = FlattenCache()
    for _ in range(times - 1):
        recall.flatten(content)
    return trainer_slot.written(recall.flatten(content))


def _values(content: object) -> dict[str, object]:
    return {
        name: tensor.tolist() for name, tensor in flatten.flatten({"m": content}).tensors.items()
    }


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("kind", MAKE)
def test_the_version_that_saved_is_the_one_that_is_loaded(kind, times):
    """Also as one of several nets, and from a save that remembers the one before."""
    saved, live = MAKE[kind](), MAKE[kind]()
    _load(_saved({"nets": (saved, 1)}, times), {"nets": (live, 0)})
    assert _values(live) == _values(saved)


@pytest.mark.parametrize("kind", [kind for kind in MAKE if kind != "held"])
def test_a_snapshot_without_versions_is_of_the_module_as_it_is(kind):
    """Of before they were kept: most often the script is still the same."""
    saved, live = MAKE[kind](), MAKE[kind]()
    _load(_saved({"net": saved}), {"net": live}, without=KEY)
    assert _values(live) == _values(saved)


def test_what_an_older_version_saved_is_upgraded_once():
    """Its version is torch's default, which is not written for each module."""
    live = torch.nn.Sequential(_Upgraded())
    _load(_saved({"net": torch.nn.Sequential(_First())}), {"net": live})
    assert live[0].scale.tolist() == [1.0] * 3
    again = torch.nn.Sequential(_Upgraded())
    _load(_saved({"net": live}), {"net": again})
    assert again[0].scale.tolist() == [1.0] * 3


def test_versions_that_are_not_the_default_are_written():
    """By the object's path and the module's name in it; nothing where no module is."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), _Upgraded())
    found = flatten.flatten({"nets": [net], "plain": torch.nn.Linear(1, 1), "n": 1}).metadata
    assert json.loads(found[KEY]) == {
        "['nets'][0]": {"1": {"version": 2}},
        "['plain']": {},
    }
    assert KEY not in flatten.flatten({"n": 1, "t": torch.ones(1)}).metadata


def test_versions_are_kept_on_storage_and_in_another_world():
    """A share of a rank has them, and what is put together of several."""
    whole = snapshot.read(memoryview(_saved({"net": _Upgraded()})))
    shares = [write_shares.plan_share(whole, rank, 2) for rank in range(2)]
    heads = [snapshot.read(share.header, share.length) for share in shares]
    made = assembly.plan(heads, 1)
    for head in (*heads, snapshot.read(made.header, made.length)):
        assert head.metadata[KEY] == whole.metadata[KEY]


@pytest.mark.parametrize("text", ["[", "[1]", '{"a": 1}', '{"a": {"b": 1}}'])
def test_damaged_versions_are_torn(text):
    """And nothing else."""
    found = flatten.flatten({"net": _Upgraded()})
    metadata = {**found.metadata, KEY: text}
    with pytest.raises(errors.CorruptSnapshot):
        load.StateLoader(
            {"net": _Upgraded()}, metadata, found.tensors, threads=copy_threads.CopyThreads(0)
        )

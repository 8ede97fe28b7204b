# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Models that torch.compile wraps, whole or in parts, are saved and restored as all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from rover_kf.trainer.state import flatten
from rover_kf.trainer.state.flatten_cache import FlattenCache, live_dtensors
from tests.support.pods import trainer_slot
from tests.support.training.single_process_mesh import own_mesh

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class _Upgraded(torch.nn.Linear):
    """Doubles what its first version has saved."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *rest):
        if local_metadata["version"] < 2:
            state_dict[prefix + "weight"] = state_dict[prefix + "weight"] * 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class _Held:
    """A state dict as it was saved before names were made plain."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def state_dict(self) -> dict[str, object]:
        return dict(self._module.state_dict())

    def load_state_dict(self, _: object) -> None:
        raise NotImplementedError


def _plain() -> torch.nn.Sequential:
    return torch.nn.Sequential(_Upgraded(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def _compiled(module: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(module, backend="eager")


def _in_parts() -> torch.nn.Module:
    found = _plain()
    for index, part in enumerate(found):
        found[index] = _compiled(part)
    return found


def _parallel(module: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(module)


FORMS: dict[str, Callable[[], torch.nn.Module]] = {
    "plain": _plain,
    "whole": lambda: _compiled(_plain()),
    "in parts": _in_parts,
    "both": lambda: _compiled(_in_parts()),
    "parallel": lambda: _parallel(_plain()),
    "inside of parallel": lambda: _parallel(_compiled(_plain())),
    "around parallel": lambda: _compiled(_parallel(_plain())),
}


def _values(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _trained(form: str) -> dict[str, object]:
    model = FORMS[form]()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


@pytest.fixture(autouse=True)
def group():
    """For the forms that need one."""
    with own_mesh() as found:
        yield found


@pytest.mark.parametrize("live", FORMS)
@pytest.mark.parametrize("saved", FORMS)
def test_a_model_may_be_compiled_after_a_restart_or_no_more(saved, live):
    """The file has the names that it has without compiling, and versions come to their modules."""
    before, after = _trained(saved), _trained(live)
    parts = flatten.flatten(before)
    assert parts.tensors.keys() == flatten.flatten(_trained("plain")).tensors.keys()
    trainer_slot.restored(trainer_slot.written(parts), after)
    for there, here in zip(_values(before["model"]), _values(after["model"]), strict=True):
        assert torch.equal(there, here)
    moments = [found["optimizer"].state_dict()["state"][0]["exp_avg"] for found in (before, after)]
    assert torch.equal(*moments)


@pytest.mark.parametrize("live", FORMS)
@pytest.mark.parametrize("saved", ["whole", "in parts", "both"])
def test_names_of_before_they_were_plain_are_known(saved, live):
    """A checkpoint on storage may be older than the runtime."""
    before, after = FORMS[saved](), FORMS[live]()
    trainer_slot.restored(
        trainer_slot.written(flatten.flatten({"model": _Held(before)})), {"model": after}
    )
    for there, here in zip(_values(before), _values(after), strict=True):
        assert torch.equal(there, here)


def test_a_module_with_a_form_of_its_own_keeps_it():
    """One of its parts is compiled, and what it gives has keys that are no names."""

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = _compiled(torch.nn.Linear(2, 2))

        def state_dict(self):
            return {0: self.part.weight.detach(), "told": 1}

        def load_state_dict(self, found):
            self.told = found["told"]
            self.part.weight.data.copy_(found[0])

    before, after = Own(), Own()
    trainer_slot.restored(
        trainer_slot.written(flatten.flatten({"model": before})), {"model": after}
    )
    assert torch.equal(after.part.weight, before.part.weight)
    assert after.told == 1


@pytest.mark.parametrize("form", ["plain", "whole", "in parts", "both"])
def test_a_second_look_finds_the_names_of_the_first(form):
    """What a save looks at quickly is what it looked at with care."""
    found, recall = _trained(form), FlattenCache()
    first = recall.flatten(found)
    found["model"](torch.randn(3, 4)).sum().backward()
    found["optimizer"].step()
    era = recall.generation
    second = recall.flatten(found)
    assert recall.generation == era
    assert second.tensors.keys() == first.tensors.keys()


def test_shards_of_a_compiled_model_are_known_by_the_plain_names(group):
    """FSDP2 with torch.compile around it asks for the boxes that it would ask for without."""
    plain = fully_shard(_plain(), mesh=group)
    wanted = live_dtensors({"model": plain}, replicated=True).requested_boxes()
    compiled = live_dtensors({"model": _compiled(plain)}, replicated=True).requested_boxes()
    assert wanted
    assert compiled == wanted

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a saved value has the form of the live one in whose place it comes.

A live value that others refer to (a module, a parameter that an optimizer changes) can only be
loaded in place. Where the saved one has another form, that is an error: to put the saved one into
the state would leave those others at their fresh start.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from rover_kf import errors
from rover_kf.trainer.state.flatten import DTYPES, is_stateful, unwrap

_log = logging.getLogger("rover_kf")

OTHER_SCRIPT = "was it saved by another script? Start this one as another job to begin anew"
"""What to do about a state that does not fit."""
_TAGS = {"l": "a list", "t": "a tuple", "d": "a dict", "n": "a Counter", "T": "a tensor"}
"""Of JSON data of rover_kf.checkpoint.format.plain_data."""
_REFUSALS = ("Error(s) in loading state_dict for ", "loaded state dict ")
"""How messages of Module.load_state_dict and Optimizer.load_state_dict begin."""


def warn_detached_state_dicts(state: Mapping[str, object]) -> None:
    """Say which entries are what an optimizer's ``state_dict()`` gave, in its place.

    It comes back, but nobody puts it into the optimizer, which would train on from a fresh start.
    """
    found = [f"state{path}" for path in _detached_state_dicts(state, "")]
    if found:
        _log.warning(
            "rover-kf: %s is a state dict of an optimizer, which gets nothing of it by itself: put "
            "the optimizer into the state, or call its load_state_dict after each restore",
            ", ".join(found),
        )


def _detached_state_dicts(value: object, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    if value.keys() == {"state", "param_groups"}:
        yield path
        return
    for key, item in value.items():
        yield from _detached_state_dicts(item, f"{path}[{key!r}]")


def check_missing(live: dict[Any, Any], saved: Collection[Any], path: str) -> None:
    """What has tensors or is loaded must have been saved; plain values may be new.

    Raises:
        IncompatibleState: it was not.
    """
    for key in [key for key in live if key not in saved]:
        if any(is_stateful(leaf) or isinstance(leaf, torch.Tensor) for leaf in _leaves(live[key])):
            raise errors.IncompatibleState(
                f"state{path}[{key!r}] is not in the checkpoint, which has "
                f"{sorted(map(str, saved))}; {OTHER_SCRIPT}"
            )


def check_replaceable(live: object, tree: Any, path: str) -> None:
    """What is going to be replaced may hold nothing that can only be loaded in place.

    Args:
        live: a value that the saved one does not fit.
        tree: the saved one, as JSON data.
        path: where it stands.

    Raises:
        IncompatibleState: it does.
    """
    held = next((leaf for leaf in _leaves(live) if _is_referred_to(leaf)), None)
    if held is not None:
        inside = "" if held is live else f" with a {type(held).__name__} in it"
        raise errors.IncompatibleState(
            f"state{path} is {_form(live)}{inside}, which cannot be loaded from what the "
            f"checkpoint has there: {_saved_form(tree)}; {OTHER_SCRIPT}"
        )


def check_shape(live: torch.Tensor, saved: torch.Tensor, path: str) -> None:
    """A plain tensor of another shape is one that the loop has put there, and is taken.

    Raises:
        IncompatibleState: others refer to the live one, and it cannot have that shape.
    """
    if _is_referred_to(live):
        raise errors.IncompatibleState(
            f"state{path} is a tensor of shape {tuple(live.shape)}, the checkpoint has one of "
            f"shape {tuple(saved.shape)}; {OTHER_SCRIPT}"
        )


@contextlib.contextmanager
def compatible(target: Any, path: str) -> Iterator[None]:
    """Around load_state_dict of torch's modules and optimizers, which say what does not fit.

    Raises:
        IncompatibleState: they have said so; what else they raise may be another thing.
    """
    needed = _needed(target)
    try:
        yield
    except (RuntimeError, ValueError) as cause:
        said = str(cause).strip()
        if not said.startswith(_REFUSALS):
            raise
        raise errors.IncompatibleState(
            f"state{path}, {type(target).__name__}, is not what the checkpoint has: {said}; "
            "what a script adds while it trains (layers, add_param_group) has to be there before "
            f"restore, and Checkpointer.peek tells how far the saved state was. Or {OTHER_SCRIPT}"
        ) from cause
    except KeyError as cause:
        if not needed:
            raise
        raise _other_class_error(target, path, cause.args) from cause
    lacking = needed.difference(*target.param_groups) if needed else ()
    if lacking:
        raise _other_class_error(target, path, sorted(lacking))


def _needed(target: Any) -> set[str]:
    """What groups of torch's own optimizers cannot lack: they take it and fail in their next step.

    A user's own may do with less than it was made with.
    """
    if type(target).__module__.split(".")[:2] != ["torch", "optim"]:
        return set()
    if not isinstance(target, torch.optim.Optimizer):
        return set()
    return set(target.defaults).intersection(*target.param_groups)


def _other_class_error(
    target: object, path: str, lacking: Iterable[object]
) -> errors.IncompatibleState:
    return errors.IncompatibleState(
        f"state{path}, {type(target).__name__}, cannot go on from what the checkpoint has: that "
        f"lacks {', '.join(map(repr, lacking))}, as it was saved of an optimizer of another class. "
        "Take that class again, or start this one as another job, whose script loads the weights "
        "(rover-kf checkpoint export)"
    )


def is_convertible(saved: torch.dtype, live: torch.Tensor) -> bool:
    """Whether a live tensor takes values of that type, as a module's do when it is loaded.

    A plain one takes its own type alone: another is what the loop has put there, exactly.
    """
    if saved == live.dtype:
        return True
    known = saved in DTYPES and live.dtype in DTYPES
    return known and _is_referred_to(live) and torch.can_cast(saved, live.dtype)


def _leaves(value: object) -> Iterator[object]:
    """All that a value's dicts, lists and tuples hold; of any other value, itself."""
    if isinstance(value, dict):
        value = [*value.values()]
    if not isinstance(value, (list, tuple)):
        yield value
        return
    for item in value:
        yield from _leaves(item)


def _is_referred_to(value: object) -> bool:
    if isinstance(value, torch.Tensor):  # a parameter, or what the script gives an optimizer
        return isinstance(value, torch.nn.Parameter) or value.requires_grad
    return is_stateful(unwrap(value))


def _form(value: object) -> str:
    kind = f"a {type(value).__name__}"
    return f"{kind} of {len(value)}" if isinstance(value, (dict, list, tuple)) else kind


def _saved_form(tree: Any) -> str:
    ((tag, content),) = tree.items() if isinstance(tree, dict) and len(tree) == 1 else [("", "")]
    kind = _TAGS.get(tag, "plain data")
    return kind if isinstance(content, str) else f"{kind} of {len(content)}"

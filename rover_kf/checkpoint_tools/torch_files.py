# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A whole state in torch's own formats: torch.save's file, and a folder of distributed checkpoints.

The only module here that needs torch; it is imported when one of these formats is asked for.
"""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import mmap
import pathlib
import pickle
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_saver import save

from rover_kf import errors
from rover_kf.checkpoint.format.snapshot import PlacedTensor
from rover_kf.checkpoint_tools.consolidated_state import ConsolidatedState, replace_references
from rover_kf.trainer.dcp import plan_items
from rover_kf.trainer.state import module_versions, strides
from rover_kf.trainer.state.flatten import SUB_BYTE, dtype_of
from rover_kf.trainer.state.module_versions import Versions
from rover_kf.trainer.state.strides import Strides


def write_file(state: ConsolidatedState, path: pathlib.Path) -> None:
    """Write what ``torch.load(path, weights_only=True)`` opens: the state as nested dicts.

    Args:
        state: to write.
        path: of the new file.

    Raises:
        CorruptSnapshot: a file of the checkpoint is damaged.
        CheckpointError: this torch lacks a type.
        InputError: torch cannot write a type.
        StorageError: the storage cannot be read, or the file cannot be written.
    """
    with _mapped_state(state, path.parent) as tree, path.open("xb") as file:
        named = tree.get(plan_items.KEY)
        versions = module_versions.read(state.content.metadata)
        try:
            torch.save(_with_versions(tree, versions) if named is None else _decode(named), file)
        except RuntimeError as cause:
            raise _underlying_error(path, cause, cause) from cause


def write_folder(state: ConsolidatedState, path: pathlib.Path) -> None:
    """Fill a folder that ``torch.distributed.checkpoint.load`` reads.

    Args:
        state: to write.
        path: of the folder; empty.

    Raises:
        CorruptSnapshot: a file of the checkpoint is damaged.
        CheckpointError: this torch lacks a type.
        InputError: torch cannot write a type.
        StorageError: the storage cannot be read, or the folder cannot be written.
    """
    with _mapped_state(state, path.parent) as tree, warnings.catch_warnings():
        # One process is what is meant.
        warnings.filterwarnings("ignore", message="torch.distributed is (disabled|unavailable)")
        writer, named = FileSystemWriter(path), tree.get(plan_items.KEY)
        try:
            if named is None:
                save(tree, storage_writer=writer)
            else:
                save(named, storage_writer=writer, planner=_AlreadyEncoded())
        except CheckpointException as cause:
            failures = [failure for failure, _ in cause.failures.values()]
            raise _underlying_error(path, cause, *failures) from cause


def _underlying_error(
    path: pathlib.Path, error: BaseException, *failures: BaseException
) -> Exception:
    """The file system's error behind torch's, which speaks of something else; else torch's end."""
    for failure in failures:
        behind: BaseException | None = failure
        while behind is not None:
            if isinstance(behind, OSError):
                return OSError(behind.errno, behind.strerror)
            behind = behind.__cause__ or behind.__context__
    return errors.StorageError(f"{path} cannot be written: {str(error).splitlines()[-1]}")


class _AlreadyEncoded(DefaultSavePlanner):
    """Takes what another planner has encoded as it is; nothing is unpickled here."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002, ARG002 - their names
        """A value's bytes stand for themselves."""
        return io.BytesIO(object) if isinstance(object, bytes) else object


def _decode(named: dict[str, Any]) -> dict[str, Any]:
    """What a planner has encoded, as far as it is plain; else its bytes."""
    found = dict(named)
    for name, value in named.items():
        if isinstance(value, bytes):
            with contextlib.suppress(pickle.UnpicklingError):
                found[name] = torch.load(io.BytesIO(value), weights_only=True)
    return found


def _with_versions(value: Any, versions: Mapping[str, Versions], path: str = "") -> Any:
    """A state whose modules' state dicts have their versions, as torch gives them."""
    if isinstance(value, dict):
        told = {
            key: _with_versions(item, versions, f"{path}[{key!r}]") for key, item in value.items()
        }
        return _make_versioned(told, versions[path]) if path in versions else type(value)(told)
    if isinstance(value, (list, tuple)):
        return type(value)(
            _with_versions(item, versions, f"{path}[{index}]") for index, item in enumerate(value)
        )
    return value


def _make_versioned(
    state_dict: dict[Any, Any], kept: Versions
) -> collections.OrderedDict[Any, Any]:
    # What is left out has torch's default; names of modules are those above tensors' names.
    above = [itertools.accumulate(str(key).split(".")[:-1], "{}.{}".format) for key in state_dict]
    names = ["", *itertools.chain.from_iterable(above)]
    told = {**{name: {"version": 1} for name in names}, **kept}
    found = collections.OrderedDict(state_dict)
    found._metadata = collections.OrderedDict(told)  # type: ignore[attr-defined] # noqa: SLF001 - torch's own way
    return found


def _check_types(state: ConsolidatedState) -> None:
    """Refuse what torch itself cannot write, before anything is read.

    Raises:
        InputError: a tensor is of such a type.
    """
    for place in state.content.tensors.values():
        if dtype_of(place.entry.dtype) in SUB_BYTE:
            raise errors.InputError(
                f"{place.entry.name} is of torch's type {place.entry.dtype}, which neither "
                "torch.save nor torch.distributed.checkpoint can write; --format safetensors "
                "writes its bytes"
            )


@contextlib.contextmanager
def _mapped_state(state: ConsolidatedState, folder: pathlib.Path) -> Iterator[dict[Any, Any]]:
    """The state with tensors over a file without a name, so that it need not fit into memory."""
    _check_types(state)
    with tempfile.TemporaryFile(dir=folder) as scratch:
        state.fill_file(scratch.fileno())
        mapping = mmap.mmap(scratch.fileno(), state.assembly.length, access=mmap.ACCESS_COPY)
        tensors, lies = state.content.tensors, strides.read(state.content.metadata)
        yield replace_references(
            state.tree(),
            lambda name: _as_strided(_make_tensor(mapping, tensors[name]), lies.get(name)),
        )


def _make_tensor(mapping: mmap.mmap, placed: PlacedTensor) -> torch.Tensor:
    # A storage of its own for each: torch.save writes storages whole.
    dtype, shape = dtype_of(placed.entry.dtype), placed.entry.shape
    if placed.begin == placed.end:
        return torch.empty(shape, dtype=dtype)
    size = placed.end - placed.begin
    flat = torch.frombuffer(mapping, dtype=torch.uint8, count=size, offset=placed.begin)
    return flat.view(dtype).view(shape)


def _as_strided(tensor: torch.Tensor, lies: Strides | None) -> torch.Tensor:
    return tensor if lies is None else strides.empty(tensor, lies).copy_(tensor)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A file system that remembers every call, and what may stand on the disk after any of them.

A process that dies leaves all that its calls have done. A power cut leaves what was synced, and of
the rest nobody knows: bytes of a file are safe once the file was synced, names in a folder once the
folder was.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import threading
from collections.abc import Iterator, Mapping

from rover_kf.checkpoint.storage.syscalls import Syscalls

TOP = 0
"""Number of the folder that was there before all calls."""
_WRITE_BYTES = 16 << 10
"""Most that one call writes, so that a crash falls between two writes of one file."""
_ALL_SUBSETS = 4
"""Up to so many effects that were not synced every subset of them is tried."""

Tree = Mapping[str, "bytes | None"]
"""What stands on a disk: a file's bytes below each path, None below a folder's."""


@dataclasses.dataclass(frozen=True, slots=True)
class Name:
    """A name in a folder now means this file or folder, or nothing."""

    name: str
    number: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Bytes:
    """So many bytes stand in a file from there on."""

    offset: int
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Effect:
    """What is lost together if ``owner`` is not synced afterwards."""

    owner: int
    """Number of the file or folder."""
    changes: tuple[Name | Bytes, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One system call."""

    name: str
    effects: tuple[Effect, ...] = ()
    synced: int | None = None


class Recorder(Syscalls):
    """Real calls below a folder that is empty at first; each is put down.

    Args:
        top: the folder; paths outside of it are none of ours.
        before: calls of an earlier process whose work is materialised there.
    """

    def __init__(self, top: pathlib.Path, before: tuple[Call, ...] = ()) -> None:
        self.calls: list[Call] = []
        self._top = top
        self._open: dict[int, list[int]] = {}
        self._folders: dict[int, dict[str, int]] = {TOP: {}}
        self._next = TOP + 1
        self._turn = threading.RLock()
        for call in before:
            self._take(call)

    def _take(self, call: Call) -> None:
        self.calls.append(call)
        for effect in call.effects:
            for change in effect.changes:
                if not isinstance(change, Name):
                    continue
                _set(self._folders[effect.owner], change)
                if change.number is not None:
                    self._next = max(self._next, change.number + 1)
                    if call.name == "make_folder":
                        self._folders[change.number] = {}

    def _find(self, path: pathlib.Path) -> int | None:
        number: int | None = TOP
        for part in path.relative_to(self._top).parts:
            number = self._folders.get(number if number is not None else -1, {}).get(part)
        return number

    def _owner(self, path: pathlib.Path) -> int:
        number = self._find(path.parent)
        assert number is not None, path
        return number

    def make_folder(self, path):
        with self._turn:
            super().make_folder(path)
            owner, effects = TOP, []
            for part in path.relative_to(self._top).parts:
                known = self._folders.get(owner, {}).get(part)
                number = self._next + len(effects) if known is None else known
                if known is None:
                    effects.append(Effect(owner, (Name(part, number),)))
                owner = number
            self._take(Call("make_folder", tuple(effects)))

    def create(self, path, *, direct=False):
        with self._turn:
            descriptor = super().create(path, direct=direct)
            assert self._find(path) is None, path
            number = self._next
            effect = Effect(self._owner(path), (Name(path.name, number),))
            self._open[descriptor] = [number, 0]
            self._take(Call("create", (effect,)))
            return descriptor

    def write(self, descriptor, data):
        with self._turn:
            done = super().write(descriptor, data[:_WRITE_BYTES])
            number, offset = self._open[descriptor]
            self._open[descriptor][1] += done
            written = Bytes(offset, bytes(data[:done]))
            self._take(Call("write", (Effect(number, (written,)),)))
            return done

    def sync(self, descriptor):
        with self._turn:
            super().sync(descriptor)
            self._take(Call("sync", synced=self._open[descriptor][0]))

    def close(self, descriptor):
        with self._turn:
            super().close(descriptor)
            del self._open[descriptor]
            self._take(Call("close"))

    def rename(self, source, target):
        with self._turn:
            super().rename(source, target)
            changes = (Name(target.name, self._find(source)), Name(source.name, None))
            self._take(Call("rename", (Effect(self._owner(target), changes),)))

    def link(self, source, target):
        with self._turn:
            super().link(source, target)
            change = Name(target.name, self._find(source))
            self._take(Call("link", (Effect(self._owner(target), (change,)),)))

    def sync_folder(self, path):
        with self._turn:
            super().sync_folder(path)
            self._take(Call("sync_folder", synced=self._find(path)))

    def remove(self, path):
        with self._turn:
            super().remove(path)
            gone = self._find(path) is not None
            effects = (Effect(self._owner(path), (Name(path.name, None),)),) if gone else ()
            self._take(Call("remove", effects))

    def remove_folder(self, path):
        with self._turn:
            super().remove_folder(path)
            effect = Effect(self._owner(path), (Name(path.name, None),))
            self._take(Call("remove_folder", (effect,)))


def _set(folder: dict[str, int], change: Name) -> None:
    if change.number is None:
        folder.pop(change.name, None)
    else:
        folder[change.name] = change.number


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """Calls up to some point: what of them is safe and what is not."""

    effects: tuple[Effect, ...]
    unsynced: tuple[int, ...]
    """Indices of effects."""
    folders: frozenset[int]

    @classmethod
    def of(cls, calls: tuple[Call, ...]) -> History:
        """Go through the calls."""
        effects: list[Effect] = []
        unsynced: list[int] = []
        folders = {TOP}
        for call in calls:
            for effect in call.effects:
                unsynced.append(len(effects))
                effects.append(effect)
            if call.name == "make_folder":
                folders.update(e.changes[0].number for e in call.effects)
            if call.synced is not None:
                unsynced = [index for index in unsynced if effects[index].owner != call.synced]
        return cls(tuple(effects), tuple(unsynced), frozenset(folders))

    def left(self) -> Tree:
        """After the death of the process: everything."""
        return self._tree(frozenset())

    def cut(self) -> Iterator[Tree]:
        """After a power cut: with nothing that was not synced, with all of it, with each single
        effect alone, with all but each single one; with every subset where they are few."""
        every = self.unsynced
        if len(every) <= _ALL_SUBSETS:
            sizes = range(len(every) + 1)
            lost = itertools.chain.from_iterable(itertools.combinations(every, n) for n in sizes)
        else:
            singles = [(index,) for index in every]
            others = [tuple(i for i in every if i != index) for index in every]
            lost = iter([(), every, *singles, *others])
        for indices in lost:
            yield self._tree(frozenset(indices))

    def _tree(self, lost: frozenset[int]) -> Tree:
        folders: dict[int, dict[str, int]] = {number: {} for number in self.folders}
        files: dict[int, bytearray] = {}
        for index, effect in enumerate(self.effects):
            if index in lost:
                continue
            for change in effect.changes:
                if isinstance(change, Name):
                    _set(folders[effect.owner], change)
                else:
                    file = files.setdefault(effect.owner, bytearray())
                    end = change.offset + len(change.data)
                    file.extend(bytes(max(end - len(file), 0)))
                    file[change.offset : end] = change.data
        return dict(_walk(TOP, "", folders, files))


def _walk(
    number: int, path: str, folders: Mapping[int, Mapping[str, int]], files: Mapping[int, bytearray]
) -> Iterator[tuple[str, bytes | None]]:
    for name, inner in sorted(folders[number].items()):
        yield f"{path}{name}", None if inner in folders else bytes(files.get(inner, b""))
        if inner in folders:
            yield from _walk(inner, f"{path}{name}/", folders, files)


def key_of(tree: Tree) -> frozenset[tuple[str, int]]:
    """Equal for equal trees."""
    return frozenset((path, hash(data)) for path, data in tree.items())


def materialise(tree: Tree, top: pathlib.Path) -> None:
    """Make a folder that holds the tree."""
    top.mkdir(parents=True)
    for path, data in tree.items():
        if data is None:
            (top / path).mkdir()
        else:
            (top / path).write_bytes(data)

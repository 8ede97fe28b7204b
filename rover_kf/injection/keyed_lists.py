# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Keyed lists of a pod (containers, volumes, env, mounts) without changing one in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Item = Mapping[str, Any]
Tree = Mapping[str, Any]


def filter_items(owner: Tree, key: str, keep: Callable[[Item], bool]) -> dict[str, Any]:
    """The owner with only the items to keep; a list that becomes empty by it is left out."""
    items = owner.get(key)
    if not items:
        return dict(owner)
    kept = [item for item in items if keep(item)]
    if kept or len(kept) == len(items):
        return {**owner, key: kept}
    return {name: value for name, value in owner.items() if name != key}


def extend_items(
    owner: Tree, key: str, *, first: Sequence[Item] = (), last: Sequence[Item] = ()
) -> dict[str, Any]:
    """The owner with items put before and after those that it has."""
    return {**owner, key: [*first, *(owner.get(key) or ()), *last]}


def replace_item(
    owner: Tree, key: str, name: str, change: Callable[[Item], Item]
) -> dict[str, Any]:
    """The owner with the item of that name changed."""
    return {**owner, key: [change(i) if i.get("name") == name else i for i in owner[key]]}

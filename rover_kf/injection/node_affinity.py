# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod template's required node affinity with some nodes left out, and in again; pure.

Nodes are named by ``metadata.name``, which is what a pod's ``spec.nodeName`` says; the label
``kubernetes.io/hostname`` may differ from it. What the job's owner requires stays: alternatives
(terms) are many, and each of them leaves the nodes out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_KEY, _OPERATOR = "metadata.name", "NotIn"

Tree = Mapping[str, Any]


def excluded_nodes(pod: Tree) -> frozenset[str]:
    """Nodes that every alternative leaves out.

    Args:
        pod: the template's ``spec``.
    """
    alternatives = [_names(term) for term in _terms(pod) if _requires(term)]
    return frozenset.intersection(*alternatives) if alternatives else frozenset()


def exclude_nodes(
    pod: Tree, nodes: Collection[str], *, readmit: Collection[str] = ()
) -> Tree | None:
    """The merge patch of the template's ``spec`` that leaves those nodes out; None if it does.

    Args:
        pod: the template's ``spec``.
        nodes: to leave out.
        readmit: nodes that were left out before and may be used again.
    """
    before = _terms(pod)
    after = [_with({}, nodes)] if nodes and not before else []
    for term in before:
        # A term that requires nothing matches no node, and must not begin to match one.
        changed = _with(_without(term, readmit), nodes) if _requires(term) else term
        if changed or not _requires(term):
            after.append(changed)
    if after == before:
        return None
    required = {"nodeSelectorTerms": after} if after else None
    return {"affinity": {"nodeAffinity": {REQUIRED: required}}}


def _terms(pod: Tree) -> list[Tree]:
    affinity = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    return list((affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or ())


def _requires(term: Tree) -> bool:
    return bool(term.get("matchExpressions") or term.get("matchFields"))


def _names(term: Tree) -> frozenset[str]:
    fields = term.get("matchFields") or ()
    return frozenset(name for field in fields if (name := _name(field)))


def _name(field: Tree) -> str:
    ours = field.get("key") == _KEY and field.get("operator") == _OPERATOR
    return str(field["values"][0]) if ours else ""


def _with(term: Tree, nodes: Collection[str]) -> Tree:
    # Kubernetes takes one value a field.
    new = [
        {"key": _KEY, "operator": _OPERATOR, "values": [node]}
        for node in sorted(set(nodes) - _names(term))
    ]
    return {**term, "matchFields": [*(term.get("matchFields") or ()), *new]} if new else term


def _without(term: Tree, nodes: Collection[str]) -> Tree:
    fields = [field for field in term.get("matchFields") or () if _name(field) not in nodes]
    rest = {key: value for key, value in term.items() if key != "matchFields"}
    return {**rest, "matchFields": fields} if fields else rest

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Each Event that is emitted has its reason in the registry, and the registry has no other."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

from rover_kf.api import event_reasons, names

ROOT = pathlib.Path(__file__).parents[3]
NAMES = "rover_kf/api/names.py"
OTHERS = ("rover_kf/cluster/local/",)
"""Events of the Training Operator and of a kubelet, whose parts the embedded cluster plays."""
EMITTERS = {"Event", "emit_event", "record", "tell"}
TYPES = {each.reason: each.type for each in event_reasons.REASONS}
CONSTANTS = {key: value for key, value in vars(names).items() if key.startswith("EVENT_")}


def _reason(node):
    """The reason of an argument: of a constant of names.py, or a text in CamelCase."""
    if isinstance(node, ast.Attribute) and node.attr in CONSTANTS:
        return CONSTANTS[node.attr]
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return text if re.fullmatch(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*", text) else ""


def emitted(source):
    """Reason, whether it is a Warning, and line of each call that emits an Event.

    The second is None where the call decides it while it runs.
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = {each.arg: each.value for each in node.keywords}
        first = node.args[0] if node.args else given.get("reason")
        reason = _reason(first) if name in EMITTERS and first is not None else ""
        if reason:
            warning = given.get("warning", ast.Constant(value=False))
            known = isinstance(warning, ast.Constant)
            yield reason, warning.value if known else None, node.lineno


def wrong(source):
    """What is wrong with the Events of a module, each with its line."""
    for reason, warning, line in emitted(source):
        kind = {True: "Warning", False: "Normal", None: "Normal or Warning"}[warning]
        if reason not in TYPES:
            yield f"{line}: {reason} is not in rover_kf/api/event_reasons.py: add it"
        elif kind not in TYPES[reason]:
            yield f"{line}: {reason} is {TYPES[reason]} in the registry, {kind} here"


@pytest.fixture(scope="module")
def sources():
    """Text of each module of rover_kf and the controller, by path."""
    paths = [
        path for folder in ("rover_kf", "controller") for path in (ROOT / folder).rglob("*.py")
    ]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(paths)}
    return {path: text for path, text in texts.items() if not path.startswith(OTHERS)}


def test_each_emitted_reason_is_in_the_registry(sources):
    """With the type that it has there."""
    found = [f"{path}:{line}" for path, text in sources.items() for line in wrong(text)]
    assert not found, "\n".join(found)
    assert sum(len(list(emitted(text))) for text in sources.values()) > 60


def test_constants_come_from_the_registry():
    """No other reason, and none twice."""
    assert sorted(CONSTANTS.values()) == sorted(TYPES)
    assert len(TYPES) == len(event_reasons.REASONS)


def test_each_reason_of_the_registry_is_used(sources):
    """One that no module names is never emitted."""
    text = "\n".join(text for path, text in sources.items() if path != NAMES)
    used = set(re.findall(r"\bnames\.(EVENT_\w+)", text))
    assert CONSTANTS.keys() - used == set()


def test_each_reason_says_what_it_means_and_what_to_do():
    """In sentences, and in CamelCase that Kubernetes takes."""
    for each in event_reasons.REASONS:
        assert re.fullmatch(r"(?:[A-Z][a-z]+)+", each.reason)
        assert each.type in {event_reasons.NORMAL, event_reasons.WARNING, event_reasons.EITHER}
        for text in (each.meaning, each.action):
            assert text.endswith(".")
            assert "|" not in text
            assert "\n" not in text


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("Event(names.EVENT_HANG, m, warning=True, at=now)", ""),
        ("Event(names.EVENT_HANG, m, at=now)", "1: Hang is Warning in the registry, Normal here"),
        ("story.record(names.EVENT_PREFLIGHT, m, warning=bool(bad))", ""),
        (
            "world.tell(names.EVENT_SCALED, m, warning=bad)",
            "1: Scaled is Normal in the registry, Normal or Warning here",
        ),
        (
            'Event("MadeUp", m, warning=True)',
            "1: MadeUp is not in rover_kf/api/event_reasons.py: add it",
        ),
        ('Event(reason="MadeUp")', "1: MadeUp is not in rover_kf/api/event_reasons.py: add it"),
        ("Event(reason, m)", ""),
        ('queue.record("a text", 1)', ""),
    ],
)
def test_a_wrong_event_is_recognized(source, problem):
    """An unknown reason, and a type that differs."""
    assert "".join(wrong(source)) == problem

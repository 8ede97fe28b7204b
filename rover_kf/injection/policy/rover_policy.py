# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""RoverPolicy: a job's policy, read from its ``rover-kf.io/*`` annotations.

rover_kf/api/policy.py defines the values.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from rover_kf import errors
from rover_kf.api import names, policy
from rover_kf.injection import quantities


@dataclasses.dataclass(frozen=True, slots=True)
class RoverPolicy(policy.PolicySections):
    """The policy of one job, with defaults filled in.

    Usage::

        RoverPolicy.from_annotations({"rover-kf.io/checkpoint.every": "20"}).checkpoint.every  # 20
    """

    @classmethod
    def from_annotations(
        cls,
        annotations: Mapping[str, object],
        *,
        defaults: Mapping[str, str] | None = None,
        source: str = "manifest",
    ) -> RoverPolicy:
        """Read the policy of a job.

        Args:
            annotations: the job's; those of other prefixes are ignored.
            defaults: values for keys that the job does not state, keys with or without prefix
                (a ConfigMap's data).
            source: file or object named in errors.

        Raises:
            PolicyError: an unknown key, a wrong value, or min above max.
        """
        stated = {
            **_parse_stated(defaults or {}, "defaults", bare=True),
            **_parse_stated(annotations, source),
        }
        sections: dict[str, dict[str, object]] = {}
        for key, text in stated.items():
            section, field = key.split(".", 1)
            value = _read_value(key, text, source)
            sections.setdefault(section, {})[field.replace("-", "_")] = value
        read = cls()
        try:
            for name, values in sections.items():
                section = dataclasses.replace(getattr(read, name), **values)
                read = dataclasses.replace(read, **{name: section})
        except errors.PolicyError as error:
            raise errors.PolicyError(
                error.key, error.value, allowed=error.allowed, source=source
            ) from None
        return read

    def to_annotations(self) -> dict[str, str]:
        """Write back what differs from the default; the inverse of reading."""
        return {
            names.PREFIX + section.key(field.name): _text(value)
            for section in (getattr(self, item.name) for item in dataclasses.fields(self))
            for field in dataclasses.fields(section)
            if (value := getattr(section, field.name)) != field.default
        }


_NOT_POLICY = {
    names.CPU_RAISED_ANNOTATION,
    names.INJECT_LABEL,
    names.INJECTED_ANNOTATION,
    names.LAUNCH_RENEWAL_ANNOTATION,
    names.LAUNCH_RUN_ANNOTATION,
    names.MEMORY_RAISED_ANNOTATION,
    names.NOT_REWRITTEN_ANNOTATION,
    names.ORIGINAL_COMMAND_ANNOTATION,
    names.STATUS_ANNOTATION,
}


def describe_allowed(key: str) -> str:
    """The phrase that says what may stand at a key (without prefix)."""
    return str(policy.policy_fields()[key].metadata["rule"].help)


def _parse_stated(
    stated: Mapping[str, object], source: str, *, bare: bool = False
) -> dict[str, str]:
    known = tuple(policy.policy_fields())
    found: dict[str, str] = {}
    for full, value in stated.items():
        if full in _NOT_POLICY or not (bare or full.startswith(names.PREFIX)):
            continue
        key = full.removeprefix(names.PREFIX)
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.4) or known
            say = f"no such key; did you mean {names.PREFIX}{nearest[0]}?"
            raise errors.PolicyError(full, value, allowed=say, source=source)
        if not isinstance(value, str):
            say = f"text in quotes: {describe_allowed(key)}"
            raise errors.PolicyError(names.PREFIX + key, value, allowed=say, source=source)
        found[key] = value
    return found


def _read_value(key: str, text: str, source: str) -> object:
    """The value that an annotation's text states."""
    field = policy.policy_fields()[key]
    read = _READERS[field.metadata["rule"].unit or str(field.type).removesuffix(" | None")]
    try:
        value = read(text)
        allowed = field.metadata["rule"].rejection(value)
    except ValueError:
        value, allowed = None, describe_allowed(key)
    if allowed:
        raise errors.PolicyError(names.PREFIX + key, text, allowed=allowed, source=source)
    return value


def _bytes(text: str) -> int:
    if 0 < quantities.parse(text) < 1:
        raise ValueError("a part of a byte: m is a thousandth, M and Mi are millions")
    return quantities.parse_bytes(text)


def _whole_number(text: str) -> int:
    return int(text.removesuffix(".0"))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in text.split(",")}))


_READERS: Mapping[str, Callable[[str], Any]] = {
    policy.BYTES: _bytes,
    policy.CORES: quantities.parse_cores,
    policy.SECONDS: quantities.parse_seconds,
    "int": _whole_number,
    "float": float,
    "str": str,
    "tuple[int, ...]": _sizes,
}
"""By unit, else by type."""


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)

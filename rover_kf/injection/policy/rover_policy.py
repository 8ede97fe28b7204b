# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""RoverPolicy: what a job's owner wants of rover-kf, read from ``rover-kf.io/*`` annotations.

A field ``checkpoint.persist_seconds`` is the annotation ``rover-kf.io/checkpoint.persist-seconds``.
The models of policy_sections.py are the only list of keys.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

import pydantic

from rover_kf import errors
from rover_kf.api import names
from rover_kf.injection.policy.sections import (
    CheckpointPolicy,
    CpuPolicy,
    FailurePolicy,
    HangPolicy,
    LaunchPolicy,
    MemoryPolicy,
    NodesPolicy,
    PolicySection,
    PreflightPolicy,
    ScalingPolicy,
    StragglerPolicy,
    TlsPolicy,
)


class RoverPolicy(PolicySection):
    """All wishes of one job, with defaults filled in.

    Usage::

        RoverPolicy.from_annotations({"rover-kf.io/checkpoint.every": "20"}).checkpoint.every  # 20
    """

    checkpoint: CheckpointPolicy = CheckpointPolicy()
    scaling: ScalingPolicy = ScalingPolicy()
    memory: MemoryPolicy = MemoryPolicy()
    cpu: CpuPolicy = CpuPolicy()
    failures: FailurePolicy = FailurePolicy()
    hang: HangPolicy = HangPolicy()
    preflight: PreflightPolicy = PreflightPolicy()
    straggler: StragglerPolicy = StragglerPolicy()
    nodes: NodesPolicy = NodesPolicy()
    tls: TlsPolicy = TlsPolicy()
    launch: LaunchPolicy = LaunchPolicy()

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
        for key, value in stated.items():
            section, field = key.split(".", 1)
            sections.setdefault(section, {})[field.replace("-", "_")] = value
        try:
            found = cls.model_validate(sections)
        except errors.PolicyError as error:
            raise errors.PolicyError(
                error.key, error.value, allowed=error.allowed, source=source
            ) from None
        except pydantic.ValidationError as error:
            raise _to_policy_error(error, source) from error
        _check_numbers(found, source)
        return found

    def to_annotations(self) -> dict[str, str]:
        """Write back what was stated or differs from the default; the inverse of reading."""
        stated = self.model_dump(exclude_unset=True)
        return {
            f"{names.PREFIX}{section}.{field.replace('_', '-')}": _text(value)
            for section, fields in stated.items()
            for field, value in fields.items()
            if value is not None
        }


_NUMBER_LIMIT = 2**63

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


def keys() -> Iterator[str]:
    """Every policy annotation's key, without prefix, such as ``checkpoint.path``."""
    for section, info in RoverPolicy.model_fields.items():
        for field in type(info.default).model_fields:
            yield f"{section}.{field.replace('_', '-')}"


def describe_allowed(key: str) -> str:
    """The phrase that says what may stand at a key (without prefix)."""
    section, field = key.split(".", 1)
    model = type(RoverPolicy.model_fields[section].default)
    return str(model.model_fields[field.replace("-", "_")].description)


def _parse_stated(
    stated: Mapping[str, object], source: str, *, bare: bool = False
) -> dict[str, object]:
    known = tuple(keys())
    found: dict[str, object] = {}
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


def _check_numbers(policy: RoverPolicy, source: str) -> None:
    """No number that a sidecar, which reads it as text, could not hold."""
    for section, fields in policy.model_dump(exclude_unset=True).items():
        for field, value in fields.items():
            numbers = value if isinstance(value, (list, tuple)) else (value,)
            if any(isinstance(item, (int, float)) and not _is_bounded(item) for item in numbers):
                key = f"{section}.{field.replace('_', '-')}"
                say = f"{describe_allowed(key)}, below 2^63"
                raise errors.PolicyError(names.PREFIX + key, value, allowed=say, source=source)


def _is_bounded(number: float) -> bool:
    return -_NUMBER_LIMIT < number < _NUMBER_LIMIT


def _to_policy_error(error: pydantic.ValidationError, source: str) -> errors.PolicyError:
    first = error.errors()[0]
    section, field = (str(part) for part in first["loc"][:2])
    key = f"{section}.{field.replace('_', '-')}"
    return errors.PolicyError(
        names.PREFIX + key, first["input"], allowed=describe_allowed(key), source=source
    )


def _text(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(str(item) for item in value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)

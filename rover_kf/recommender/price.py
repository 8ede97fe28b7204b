# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What sizes cost by a table that the user gives."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping

import yaml

from rover_kf import errors
from rover_kf.api.decisions import Cost, Quantity
from rover_kf.recommender import size_evidence
from rover_kf.recommender.size_evidence import GIB, SizeEvidence

_KEYS = ("cpu", "memory", "accelerator")


@dataclasses.dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices of an hour."""

    cpu: float = 0.0
    """Of a core."""
    memory: float = 0.0
    """Of a GiB."""
    accelerator: float = 0.0
    """Of a device."""
    currency: str = ""

    @classmethod
    def read(cls, path: pathlib.Path) -> PriceTable:
        """Read ``{currency: EUR, cpu: 0.03, memory: 0.004, accelerator: 2.5}`` from YAML or JSON.

        Raises:
            InputError: no such file, or a key or value that is not allowed.
        """
        try:
            told = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as cause:
            raise errors.InputError(f"the prices in {path} cannot be read: {cause}") from cause
        return cls.from_data(told, source=str(path))

    @classmethod
    def from_data(cls, data: object, *, source: str = "prices") -> PriceTable:
        """Return the table from plain data, or raise InputError."""
        allowed = f"a mapping of {', '.join(_KEYS)} (an hour's price, 0 or more) and currency"
        if not isinstance(data, Mapping) or set(data) - {*_KEYS, "currency"}:
            raise errors.InputError(f"{source} holds {data!r}; allowed: {allowed}")
        for key in _KEYS:
            value = data.get(key, 0.0)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise errors.InputError(f"{source}: {key} is {value!r}; allowed: {allowed}")
        numbers = {key: float(data.get(key, 0.0)) for key in _KEYS}
        return cls(**numbers, currency=str(data.get("currency", "")))

    def hourly_cost(self, *, cpu: float, memory: float, accelerators: float) -> float:
        """An hour of one replica; memory in bytes."""
        paid = cpu * self.cpu + memory / GIB * self.memory
        return paid + accelerators * self.accelerator


def predict_cost(evidence: SizeEvidence, sizes: Mapping[str, Quantity], table: PriceTable) -> Cost:
    """What the sizes cost an hour, and the whole run where runs alike show its length.

    The sizes are ``replicas``, ``cpu``, ``memory`` and ``arena``, as recommended; of a job with
    parameter servers ``servers`` and ``server_cpu``, too.
    """
    masters, devices = evidence.job.masters, evidence.job.signature.accelerators

    def hour(bound: str) -> float:
        number = {name: float(getattr(size, bound)) for name, size in sizes.items()}
        memory = number["memory"] + number["arena"]
        each = table.hourly_cost(cpu=number["cpu"], memory=memory, accelerators=devices)
        whole = (number["replicas"] + masters) * each
        if "servers" not in sizes:
            return whole
        held = number.get("server_memory", number["memory"])
        server = table.hourly_cost(cpu=number["server_cpu"], memory=held, accelerators=0)
        return whole + number["servers"] * server

    lengths = size_evidence.weighted_samples(
        evidence.successful_runs(), lambda run: (run.updated_at - run.started_at) / 3600.0
    )
    hours = size_evidence.quantile(lengths, 0.5) if lengths else None
    pods = sizes["replicas"].target + masters
    why = f"{pods:g} pods with cores, memory, arena and {devices} accelerators each"
    if "servers" in sizes:
        why += f", {sizes['servers'].target:g} PS"
    if hours is None:
        why += "; no run alike has shown how long it takes"
    else:
        why += f"; runs alike took {hours:.2f} h in the middle"
    return Cost(table.currency, hour("target"), hour("lower"), hour("upper"), hours, why)

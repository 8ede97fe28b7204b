# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""torchrun's command line and PET_* variables, read as torchrun reads them.

What only makes sense for torchrun's own rendezvous and log files is accepted, and named in
``ignored`` if the command has it, so that a stock command starts unchanged and its user learns what
had no effect. PET_* variables are the Training Operator's: nobody wrote them who could learn.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

from rover_kf import errors

_VALUED = [
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
    "signals-to-handle",
    "event-log-handler",
    "shutdown-timeout",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
]
_SWITCHES = ["standalone", "module", "no-python", "run-path", "virtual-local-rank"]
_USED = {"nproc-per-node", "role", "module", "no-python", "run-path"}
_SHORT = {"module": "-m", "redirects": "-r", "tee": "-t"}


@dataclasses.dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to start."""

    target: str
    """Path of a script, a module's dotted name, or a program as PATH has it."""
    module: bool
    program: bool
    arguments: tuple[str, ...]
    processes: str
    """A number, ``auto``, ``gpu`` or ``cpu``."""
    role: str = "default"
    ignored: tuple[str, ...] = ()
    """Options of the command that have no meaning here."""


def parse(command: Sequence[str], environment: Mapping[str, str]) -> LaunchSpec:
    """Read a torchrun command line; an option not given is taken from its PET_* variable.

    Raises:
        InputError: an unknown option, no script, or an option that cannot be honoured.
    """
    found = vars(_parser().parse_args(list(command)))
    every = (*_VALUED, *_SWITCHES)
    typed = {option for option in every if found[option.replace("-", "_")] is not None}
    for option in every:
        name = option.replace("-", "_")
        if found[name] is None:
            found[name] = environment.get(f"PET_{name.upper()}")
    switched = {name: _switch(name, found[name.replace("-", "_")]) for name in _SWITCHES}
    if switched["no-python"] and switched["module"]:
        raise errors.InputError(
            "--no-python and --module: a program is no module; give one of them"
        )
    processes = str(found["nproc_per_node"] or "1")
    if processes not in ("auto", "gpu", "cpu") and not (processes.isdecimal() and int(processes)):
        raise errors.InputError(
            f"--nproc-per-node is {processes!r}; allowed: a number from 1, auto, gpu or cpu"
        )
    return LaunchSpec(
        target=found["training_script"],
        module=switched["module"],
        program=switched["no-python"],
        arguments=tuple(found["training_script_args"]),
        processes=processes,
        role=str(found["role"] or "default"),
        ignored=tuple(option for option in every if option in typed - _USED),
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override] # raises, as NoReturn does
        raise errors.InputError(f"rover-run: {message}; it takes torchrun's command line")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="rover-run", allow_abbrev=False, description=__doc__)
    for option in _VALUED:
        parser.add_argument(*_spellings(option), default=None)
    for option in _SWITCHES:
        parser.add_argument(*_spellings(option), default=None, action="store_const", const="1")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _spellings(option: str) -> list[str]:
    spellings = [f"--{option}", f"--{option.replace('-', '_')}", _SHORT.get(option, "")]
    return list(dict.fromkeys(spelling for spelling in spellings if spelling))


def _switch(option: str, value: object) -> bool:
    # torchrun reads a switch's variable as a number: PET_STANDALONE=0 is off.
    text = str(value or "0")
    try:
        return bool(int(text))
    except ValueError as cause:
        name = f"PET_{option.replace('-', '_').upper()}"
        raise errors.InputError(f"{name} is {text!r}; use 0 or 1") from cause

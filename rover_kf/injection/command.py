# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's command: torchrun and plain python become rover-run, everything else stays.

Only exec forms are rewritten: what a shell string starts cannot be known. The original is kept in
an annotation; a rewritten command without it (someone removed it) can still be turned back.
"""

from __future__ import annotations

import dataclasses
import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from rover_kf.api import names
from rover_kf.api.jobs import Manifest

RUNTIME = f"{names.HOME}/{names.RUNTIME_DIR}"
RUN_SCRIPT = f"{RUNTIME}/rover-run"
"""Shell script: finds the image's python, then RUN_MODULE."""
RUN_MODULE = f"{RUNTIME}/rover_run.py"

_PYTHON = re.compile(r"^python(3(\.\d+)?)?$")
_SIMPLE_FLAGS = frozenset(("-u", "-B", "-O", "-OO", "-q"))
_VALUED_FLAGS = ("-W", "-X")
_LAUNCHERS = ("accelerate", "deepspeed", "horovod", "lightning", "composer")
_PROCESSES = "--nproc-per-node="
_COUNT = re.compile("0*[1-9][0-9]{0,8}")


@dataclasses.dataclass(frozen=True, slots=True)
class ParsedCommand:
    """``command`` and ``args`` of a container; None where the manifest has no such key."""

    command: tuple[str, ...] | None
    args: tuple[str, ...] | None

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole line, as far as the manifest says it."""
        return (self.command or ()) + (self.args or ())


def read(container: Mapping[str, Any]) -> ParsedCommand:
    """A container's command and args."""
    command, args = container.get("command"), container.get("args")
    return ParsedCommand(
        None if command is None else tuple(command), None if args is None else tuple(args)
    )


def write(container: Mapping[str, Any], command_line: ParsedCommand) -> dict[str, Any]:
    """The container with another command and args."""
    stated = {"command": command_line.command, "args": command_line.args}
    lists = {key: list(words) for key, words in stated.items() if words is not None}
    kept = {key: value for key, value in container.items() if key in lists or key not in stated}
    return {**kept, **lists}


def processes_of(stated: object) -> int:
    """Processes of a pod that runs plain python: nprocPerNode if it is a number, else 1."""
    text = str(stated)
    return int(text) if _COUNT.fullmatch(text) else 1


def rewrite(command_line: ParsedCommand, processes: int) -> ParsedCommand | str:
    """Put rover-run in the place of torchrun or python.

    Args:
        command_line: as the user wrote it.
        processes: training processes of a pod, for a script that is started without torchrun.

    Returns:
        The new line, or one sentence saying why it stays.
    """
    if not command_line.command:
        return "the container has no command: what the image starts by itself is not known"
    program = posixpath.basename(command_line.command[0])
    if program == "torchrun":
        return _splice(command_line, ("/bin/sh", RUN_SCRIPT), 1)
    if _PYTHON.match(program):
        return _rewrite_python(command_line, processes)
    return f"{program} is neither torchrun nor python; write the command as a list starting so"


def _rewrite_python(command_line: ParsedCommand, processes: int) -> ParsedCommand | str:
    argv, position = command_line.argv, 1
    while position < len(argv) and argv[position].startswith("-"):
        if argv[position] in _SIMPLE_FLAGS or argv[position][:2] in _VALUED_FLAGS:
            position += 2 if argv[position] in _VALUED_FLAGS else 1
        else:
            break
    flags, rest = argv[:position], argv[position:]
    module = rest[1] if len(rest) > 1 and rest[0] == "-m" else ""
    if module == "torch.distributed.run":
        return _splice(command_line, (*flags, RUN_MODULE), position + 2)
    if module == "torch.distributed.launch":
        return _rewrite_launch(command_line, (*flags, RUN_MODULE), position + 2)
    if module.split(".")[0] in _LAUNCHERS:
        return f"{module} starts processes of its own; start the script with torchrun instead"
    if module or (rest and not rest[0].startswith("-")):
        return _splice(command_line, (*flags, RUN_MODULE, f"{_PROCESSES}{processes}"), position)
    return f"{' '.join((*flags, *rest[:1]))} names no script or module that rover-run could start"


def _rewrite_launch(
    command_line: ParsedCommand, head: tuple[str, ...], taken: int
) -> ParsedCommand | str:
    """Without --use-env the old launcher passes --local-rank to the script; rover-run does not."""
    use_env = {"--use-env", "--use_env"}
    if not use_env.intersection(command_line.argv[taken:]):
        return (
            "torch.distributed.launch without --use-env passes --local-rank to the script; "
            "use torchrun, and LOCAL_RANK from the environment"
        )

    def without(part: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if part is None else tuple(item for item in part if item not in use_env)

    return _splice(
        ParsedCommand(without(command_line.command), without(command_line.args)), head, taken
    )


def _splice(command_line: ParsedCommand, head: tuple[str, ...], taken: int) -> ParsedCommand:
    """Replace the first ``taken`` words by head; what stood in args stays in args."""
    command, args = command_line.command or (), command_line.args
    if taken > len(command) and args is not None:
        args = args[taken - len(command) :]
    return ParsedCommand(head + command[taken:], args)


def is_rewritten(command_line: ParsedCommand) -> bool:
    """Whether a line starts rover-run from our runtime."""
    return RUN_SCRIPT in command_line.argv or RUN_MODULE in command_line.argv


def restore(command_line: ParsedCommand, recorded: ParsedCommand | None) -> ParsedCommand:
    """The line as the user wrote it.

    Args:
        command_line: what stands in the manifest, rewritten or not.
        recorded: the original from the annotation; used only if it is the one that became
            ``command_line``, so that an edit of the rewritten line is not lost.
    """
    if not is_rewritten(command_line):
        return command_line
    if recorded is not None:
        again = rewrite(recorded, 1)
        if isinstance(again, ParsedCommand) and _comparable(again) == _comparable(command_line):
            return recorded
    argv = command_line.argv
    if RUN_SCRIPT in argv:
        return _splice(command_line, ("torchrun",), argv.index(RUN_SCRIPT) + 1)
    place = argv.index(RUN_MODULE)
    return _splice(command_line, (*argv[:place], "-m", "torch.distributed.run"), place + 1)


def _comparable(command_line: ParsedCommand) -> object:
    """The line without the number of processes, which follows the job's spec."""

    def strip(part: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if part is None:
            return None
        return tuple(
            word
            for before, word in zip(("", *part), part, strict=False)
            if not (before == RUN_MODULE and word.startswith(_PROCESSES))
        )

    return strip(command_line.command), strip(command_line.args)


def record(lines: Mapping[str, ParsedCommand]) -> str:
    """The annotation's text: command and args by replica type as the manifest writes it."""
    plain = {
        key: {
            name: list(part)
            for name, part in (("command", line.command), ("args", line.args))
            if part is not None
        }
        for key, line in lines.items()
    }
    return json.dumps(plain, sort_keys=True)


def recorded(manifest: Manifest) -> dict[str, ParsedCommand]:
    """The originals that the annotation holds; empty if it is missing or unreadable."""
    annotations = manifest["metadata"].get("annotations") or {}
    try:
        parsed = json.loads(annotations.get(names.ORIGINAL_COMMAND_ANNOTATION, "{}"))
        return {str(key): read(value) for key, value in parsed.items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        # Only a hint: restore() turns a rewritten line back without it.
        return {}


def original(manifest: Manifest, key: str, container: Mapping[str, Any]) -> tuple[str, ...]:
    """The trainer's command line as the user wrote it.

    Args:
        manifest: the job, injected or not.
        key: replica type as in the manifest (``Worker``).
        container: that replica type's trainer container.
    """
    return restore(read(container), recorded(manifest).get(key)).argv

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Public classes as Markdown: signatures, arguments and what docstrings say of them.

A repository shows docs/api.md as it is, without Sphinx: so what one looks up there stands there.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

SECTIONS = {
    "In a training script": (
        "rover_kf.Checkpointer",
        "rover_kf.ElasticDataLoader",
        "rover_kf.ElasticSampler",
        "rover_kf.ShardedDataset",
        "rover_kf.KafkaDataset",
        "rover_kf.TableRows",
        "rover_kf.DirectoryCheckpointer",
    ),
    "From a notebook, a pipeline, a program": (
        "rover_kf.RoverClient",
        "rover_kf.JobKey",
        "rover_kf.client.Progress",
        "rover_kf.client.JobHistory",
        "rover_kf.client.DryRun",
        "rover_kf.client.Constraints",
        "rover_kf.client.PriceTable",
        "rover_kf.Recommendation",
        "rover_kf.Quantity",
        "rover_kf.ScaleDecision",
        "rover_kf.RoverPolicy",
    ),
}
NOTES = {
    "In a training script": (
        "Frameworks have ways of their own: `rover_kf.trainer.huggingface`, `lightning`, `dcp`, "
        "`tensorflow`, `keras` ([frameworks](frameworks.md)).\n"
    ),
    "From a notebook, a pipeline, a program": (
        "Which keys a policy has: [policy annotations](policy.md).\n"
    ),
}
_HEAD = """# Python API

What `import rover_kf` offers, and what `rover_kf.client` gives and takes. Only these names are kept
between versions; modules below them may change. Types are in the source, which is checked by
`mypy --strict`.
"""
_TAIL = """
## Docstrings

The site that `make docs` builds has every docstring in full here.

"""
_HEADER = re.compile(r"^(Args|Returns|Raises|Yields):$|^\*\*Usage\*\*::$", re.MULTILINE)
_ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n(?: {8}.*|$))*)", re.MULTILINE)


def page() -> str:
    """All of docs/api.md."""
    parts = [_HEAD]
    for title, paths in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        parts += [_class(path) for path in paths]
        parts.append(f"\n{NOTES[title]}")
    listed = [f".. autoclass:: {path}\n   :members:\n" for path in sum(SECTIONS.values(), ())]
    told = "\n".join([*listed, ".. automodule:: rover_kf.errors\n   :members:\n"])
    told = told.replace("Course\n   :members:", "Course\n   :members: last, events")
    told = told.replace("RoverPolicy\n   :members:\n", "RoverPolicy\n")
    return f"{''.join(parts)}{_errors()}{_TAIL}```{{eval-rst}}\n{told}```\n"


def _class(path: str) -> str:
    module, _, name = path.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    about, arguments = _told(kind)
    # A policy's fields are keys of their own page.
    given = [] if name == "RoverPolicy" else list(_parameters(kind))
    call = ", ".join(_word(one) for one in _with_star(given))
    parts = [f"\n### {name}\n", f"`{path}({call})`\n", f"{about}\n"]
    members = "".join(_member(key, value) for key, value in _members(kind))
    for title, entries in (
        ("Arguments", "".join(_lines(given, arguments))),
        ("Methods and properties", members),
    ):
        parts += [f"{title}:\n", entries] if entries else []
    return "\n".join(parts)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public ones of the class and of what it inherits of rover_kf, by their names."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("rover_kf")]
    found = {
        name: value
        for base in reversed(own)
        for name, value in vars(base).items()
        if not name.startswith("_") and inspect.getdoc(value)
    }
    for name, value in sorted(found.items()):
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(plain) or isinstance(plain, property):
            yield name, plain


def _member(name: str, value: Any) -> str:
    about, arguments = _told(value)
    if isinstance(value, property):
        return f"- `{name}`: {_first(about)}\n"
    given = list(_parameters(value))
    call = ", ".join(_word(one) for one in _with_star(given))
    below = textwrap.indent("".join(_lines(given, arguments)), "  ")
    return f"- `{name}({call})`: {_first(about)}\n{below}"


def _parameters(what: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    for one in inspect.signature(what).parameters.values():
        if one.name not in ("self", "cls"):
            yield one


def _with_star(given: list[inspect.Parameter]) -> Iterator[inspect.Parameter | None]:
    """None stands for the star before arguments that have to be named."""
    kinds = [one.kind for one in given]
    named = inspect.Parameter.KEYWORD_ONLY
    for place, one in enumerate(given):
        bare = inspect.Parameter.VAR_POSITIONAL not in kinds and named not in kinds[:place]
        if one.kind is named and bare:
            yield None
        yield one


def _word(one: inspect.Parameter | None) -> str:
    """As it stands in a call's signature, without its type."""
    if one is None:
        return "*"
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return f"{stars.get(one.kind, '')}{one.name}{_default(one)}"


def _default(one: inspect.Parameter) -> str:
    if one.default is inspect.Parameter.empty:
        return ""
    text = repr(one.default)
    return "=…" if len(text) > len("'embedded'") * 2 or text.startswith("<") else f"={text}"


def _lines(given: list[inspect.Parameter], arguments: dict[str, str]) -> Iterator[str]:
    """An entry for each argument that the docstring tells of, with its type."""
    kinds = {one.name: one.annotation for one in given}
    for name, text in arguments.items():
        kind = kinds.get(name, inspect.Parameter.empty)
        stated = f" (`{kind}`)" if isinstance(kind, str) else ""
        yield f"- `{name}`{stated}: {text}\n"


def _told(what: Any) -> tuple[str, dict[str, str]]:
    """What a docstring says of a thing, as Markdown, and of each of its arguments."""
    text = inspect.getdoc(what) or ""
    found = _HEADER.search(text)
    about = text[: found.start()] if found else text
    (_, _, rest) = text.partition("\nArgs:\n")
    rest = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
    arguments = {name: _prose(" ".join(said.split())) for name, said in _ARGUMENT.findall(rest)}
    arguments |= _fields(what)
    return _prose(_code(about.strip())), arguments


def _fields(what: Any) -> dict[str, str]:
    """Of a dataclass: what stands below its fields."""
    if not dataclasses.is_dataclass(what):
        return {}
    body = ast.parse(textwrap.dedent(inspect.getsource(what))).body[0].body  # type: ignore[attr-defined] # a class
    return {
        before.target.id: _prose(" ".join(str(text.value).split()))
        for before, after in itertools.pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(text := after.value, ast.Constant)
    }


def _code(text: str) -> str:
    """Blocks of code, which begin after two colons, as fences."""
    block = re.compile(r"(^::|(?<=\S)::)\n\n((?:(?: {4}.*)?\n)* {4}.*)", re.MULTILINE)

    def fenced(found: re.Match[str]) -> str:
        above = "" if found.start() and found.string[found.start() - 1] == "\n" else ":\n\n"
        return f"{above}```python\n{textwrap.dedent(found[2])}\n```"

    return block.sub(fenced, text)


def _prose(text: str) -> str:
    return re.sub(r"(?<!`)``(?!`)", "`", text)


def _first(about: str) -> str:
    """The first paragraph in one line."""
    return " ".join(about.partition("\n\n")[0].split())


def _errors() -> str:
    """Every error with what it says of itself."""
    from rover_kf import errors  # noqa: PLC0415 - the module, not its names

    rows = [
        f"- `{name}`: {_first(_told(kind)[0])}\n"
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.RoverError)
    ]
    return f"\n## Errors\n\nAll of `rover_kf.errors`; each is a `RoverError`.\n\n{''.join(rows)}"

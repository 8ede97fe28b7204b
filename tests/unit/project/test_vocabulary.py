# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Names are the glossary's, and folders and modules have a size in which a reader finds them.

docs/reference/glossary.md has the two lists of retired words.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[3]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
NAMED = ("rover_kf", "controller", "components")
SIZED = (*NAMED, "benchmarks", "tests/support")
MAX_REPEATED_CLASSES, MAX_REPEATED_MODULES = 15, 20
MAX_FILES, MAX_LINES = 24, 400
TOP_LINES = 40
"""Within these lines a long module gives its reason."""
UNCOUNTED = {"__init__", "__main__", "settings"}
EXCEPTIONS = {
    "rover_kf/api/decisions.py:ScaleDecision.at": "a JSON key of stored run records",
    "rover_kf/api/faults/hang_reports.py:Hang.at": "a JSON key of stored run records",
    "rover_kf/api/faults/hang_reports.py:StackGroup.place": "a JSON key of stored run records",
    "rover_kf/api/faults/node_check_messages.py:NodeCheckReport.at": (
        "a JSON key of stored run records"
    ),
    "rover_kf/api/jobs.py:Event.at": "a JSON key of stored run records",
    "rover_kf/api/records.py:ProgressSample.at": "a JSON key of stored run records",
}
"""Names that a format on disk or another library fixes, each with the reason."""


@dataclasses.dataclass(frozen=True)
class Name:
    """An identifier that a module defines: ``qualified`` names its class or function as well."""

    kind: str
    name: str
    qualified: str
    path: str
    line: int

    @property
    def key(self) -> str:
        """As EXCEPTIONS lists it."""
        return f"{self.path}:{self.qualified}"


def words(name):
    """Words of a snake_case or CamelCase name, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def retired(name, parts, wholes):
    """Return the retired word that the name contains or equals, or ``""``."""
    whole = name.strip("_").replace("_", "").lower()
    inside = [word for word in words(name) if word in parts]
    return whole if whole in wholes else "".join(inside[:1])


class _Definitions(ast.NodeVisitor):
    """A visitor that collects each name that a module defines."""

    def __init__(self, path):
        self.path, self.names = path, []
        self.scope, self.in_class = (), False

    def _add(self, kind, name, node):
        qualified = ".".join((*self.scope, name))
        self.names.append(Name(kind, name, qualified, self.path, node.lineno))

    def _enter(self, node, name, *, in_class=False):
        before = self.scope, self.in_class
        self.scope, self.in_class = (*self.scope, name), in_class
        if isinstance(parameters := getattr(node, "args", None), ast.arguments):
            extra = [each for each in (parameters.vararg, parameters.kwarg) if each]
            for each in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs, *extra):
                self._add("parameter", each.arg, each)
        self.generic_visit(node)
        self.scope, self.in_class = before

    def visit_ClassDef(self, node):
        self._add("class", node.name, node)
        self._enter(node, node.name, in_class=True)

    def visit_FunctionDef(self, node):
        self._add("method" if self.in_class else "function", node.name, node)
        self._enter(node, node.name)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name that ast calls

    def visit_Lambda(self, node):
        self._enter(node, "<lambda>")

    def visit_Attribute(self, node):
        if isinstance(node.ctx, ast.Store):
            self._add("attribute", node.attr, node)
        self.generic_visit(node)

    def visit_Name(self, node):
        if self.in_class and isinstance(node.ctx, ast.Store):
            self._add("attribute", node.id, node)

    def visit_comprehension(self, node):
        """Visit a comprehension, whose variables are no attributes of the class around it."""
        before, self.in_class = self.in_class, False
        self.generic_visit(node)
        self.in_class = before


def defined_names(source, path):
    """Each class, function, parameter and attribute that the source defines."""
    visitor = _Definitions(path)
    visitor.visit(ast.parse(source))
    return visitor.names


def long_without_reason(source):
    """Whether a module is above the limit and gives no reason for it."""
    lines = source.splitlines()
    return len(lines) > MAX_LINES and not any(
        re.match(r"# Long because \S", line) for line in lines[:TOP_LINES]
    )


def _list(heading):
    """Words of a list of the glossary."""
    _, _, rest = GLOSSARY.read_text().partition(f"\n## {heading}\n")
    return set(re.findall(r"^- (\w+)$", rest.partition("\n## ")[0], re.MULTILINE))


@functools.cache
def _sources(folders):
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def _modules(paths):
    """Of each path, what an import calls it and its folders."""
    for path in paths:
        *folders, file = path.split("/")
        for depth, folder in enumerate(folders):
            yield Name("package", folder, folder, "/".join(folders[: depth + 1]), 1)
        yield Name("module", file.removesuffix(".py"), file.removesuffix(".py"), path, 1)


@pytest.fixture(scope="module")
def sources():
    """Text of each module whose names count, by path."""
    return _sources(NAMED)


@pytest.fixture(scope="module")
def defined(sources):
    """All names of these modules."""
    inside = [one for path, text in sources.items() for one in defined_names(text, path)]
    return [*dict.fromkeys(_modules(sources)), *inside]


def _repeated(names):
    """Those that stand in more than one place, with the places."""
    at = collections.defaultdict(list)
    for one in names:
        at[one.name].append(f"{one.path}:{one.line}")
    return {name: where for name, where in at.items() if len(where) > 1}


def _too_many(kind, repeated, limit):
    lines = [f"{name}: {', '.join(where)}" for name, where in sorted(repeated.items())]
    head = f"{len(lines)} {kind} names occur more than once, at most {limit} may: rename some"
    return "\n".join([head, *lines])


def test_the_glossary_has_both_lists():
    """A list that cannot be read would let every name pass."""
    assert {"told", "judge"} <= _list("Never part of a name")
    assert {"at", "place"} <= _list("Never a whole name")


def test_no_name_has_a_retired_word(defined):
    """Of modules, classes, functions, parameters and attributes; exceptions have a reason."""
    parts, wholes = _list("Never part of a name"), _list("Never a whole name")
    wrong = {one: retired(one.name, parts, wholes) for one in defined}
    wrong = {one: word for one, word in wrong.items() if word}
    lines = [
        f"{one.path}:{one.line}: {one.kind} {one.qualified}: {word!r} is retired: "
        "use a term of docs/reference/glossary.md"
        for one, word in wrong.items()
        if one.key not in EXCEPTIONS
    ]
    unused = sorted(EXCEPTIONS.keys() - {one.key for one in wrong})
    lines += [f"EXCEPTIONS: {key} is not used: remove it" for key in unused]
    assert not lines, "\n".join([f"{len(lines)} violations", *lines])


def test_few_class_names_occur_twice(defined):
    """A name that is searched for leads to one class."""
    repeated = _repeated(one for one in defined if one.kind == "class")
    assert len(repeated) <= MAX_REPEATED_CLASSES, _too_many("class", repeated, MAX_REPEATED_CLASSES)


def test_few_module_names_occur_twice(defined):
    """A file's name says which one it is."""
    modules = (one for one in defined if one.kind == "module" and one.name not in UNCOUNTED)
    repeated = _repeated(modules)
    assert len(repeated) <= MAX_REPEATED_MODULES, _too_many(
        "module", repeated, MAX_REPEATED_MODULES
    )


def test_no_folder_is_too_full():
    """At most 24 Python files, __init__.py among them."""
    counts = collections.Counter(path.rpartition("/")[0] for path in _sources(SIZED))
    lines = [
        f"{folder}: {count} Python files, at most {MAX_FILES}: make a package of those that "
        "change together"
        for folder, count in sorted(counts.items())
        if count > MAX_FILES
    ]
    assert not lines, "\n".join(lines)


def test_a_long_module_says_why():
    """Above 400 lines a comment near the top gives the reason."""
    lines = [
        f"{path}:1: {len(text.splitlines())} lines, at most {MAX_LINES}: split it, or begin a "
        f"comment within the first {TOP_LINES} lines with '# Long because'"
        for path, text in _sources(SIZED).items()
        if long_without_reason(text)
    ]
    assert not lines, "\n".join(lines)


def test_the_glossary_names_modules_that_exist():
    """Each path of an entry."""
    paths = set(re.findall(r"`((?:rover_kf|controller)/[^`]*)`", GLOSSARY.read_text()))
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert len(paths) > 50


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("told", "told"),
        ("told_at", "told"),
        ("NotFound", "found"),
        ("HTTPFound", "found"),
        ("_Judge", "judge"),
        ("_at", "at"),
        ("At_", "at"),
        ("OF", "of"),
        ("saved_at", ""),
        ("foundation", ""),
        ("stellar", ""),
        ("rank_of", ""),
        ("placement", ""),
        ("_", ""),
    ],
)
def test_a_retired_word_is_recognized(name, word):
    """As a word of the name, or as the whole name."""
    assert retired(name, {"told", "found", "judge", "tell"}, {"at", "of", "place"}) == word


def test_all_kinds_of_names_are_read():
    """Each with what it belongs to, its kind and its line."""
    source = """
class A:
    x: int = 0
    y = [z for z in ()]
    p, q = 1, 2
    def m(self, a, /, b, *c, d=lambda e: e, **f):
        self.g = local = 1
        def inner(h): ...
async def n(): ...
constant = 1
"""
    found = [(one.kind, one.qualified, one.line) for one in defined_names(source, "m.py")]
    assert found == [
        ("class", "A", 2),
        ("attribute", "A.x", 3),
        ("attribute", "A.y", 4),
        ("attribute", "A.p", 5),
        ("attribute", "A.q", 5),
        ("method", "A.m", 6),
        ("parameter", "A.m.self", 6),
        ("parameter", "A.m.a", 6),
        ("parameter", "A.m.b", 6),
        ("parameter", "A.m.d", 6),
        ("parameter", "A.m.c", 6),
        ("parameter", "A.m.f", 6),
        ("parameter", "A.m.<lambda>.e", 6),
        ("attribute", "A.m.g", 7),
        ("function", "A.m.inner", 8),
        ("parameter", "A.m.inner.h", 8),
        ("function", "n", 9),
    ]


def test_only_a_long_module_needs_a_reason():
    """At the limit none is needed; far from the top it does not count."""
    reason = "# Long because users call its methods.\n"
    assert not long_without_reason("x\n" * MAX_LINES)
    assert long_without_reason("x\n" * (MAX_LINES + 1))
    assert not long_without_reason(reason + "x\n" * MAX_LINES)
    assert long_without_reason("x\n" * MAX_LINES + reason)

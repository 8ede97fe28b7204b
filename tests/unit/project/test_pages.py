# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the pages say can be followed: links lead somewhere, commands and keys are there, code runs.

``make docs`` builds the site of them, where warnings are errors.
"""

from __future__ import annotations

import ast
import inspect
import os
import pathlib
import re
import shlex
import subprocess

import click
import pytest

import rover_kf
from rover_kf.api import names
from rover_kf.api.policy import policy_fields
from rover_kf.cli.main import cli

ROOT = pathlib.Path(__file__).parents[3]
DOCS = ROOT / "docs"
LISTED = subprocess.run(
    ["git", "ls-files", "-co", "--exclude-standard", "*.md"],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
)
PAGES = [ROOT / line for line in LISTED.stdout.splitlines() if (ROOT / line).exists()]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _name(path):
    return str(path.relative_to(ROOT))


def _prose(path):
    """Without blocks and spans of code, which may look like links."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text()))


def _anchors(path):
    """Headings as a forge makes anchors of them."""
    heads = re.findall(r"^#+ +(.*?)\s*$", FENCE.sub("", path.read_text()), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower() for head in heads)
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in plain}


def test_every_link_leads_somewhere():
    """Of every page: the file is there, and so is the heading in it."""
    broken, count = [], 0
    for page in PAGES:
        for link in LINK.findall(_prose(page)):
            if re.match(r"[a-z]+:", link):
                continue
            count += 1
            place, _, anchor = link.partition("#")
            target = (page.parent / place).resolve() if place else page
            if not target.exists():
                broken.append(f"{_name(page)}: {link}")
            elif anchor and anchor not in _anchors(target):
                broken.append(f"{_name(page)}: {link}: no such heading")
    print(f"\n{count} links in {len(PAGES)} pages")
    assert broken == []
    assert count > 100


def test_every_page_is_in_the_contents():
    """The site's index names each page of docs/."""
    index = (DOCS / "index.md").read_text().split()
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages - {"index.md"} <= set(index)


def _commands():
    """Each ``rover-kf …`` in a block of a shell, with its page."""
    for page in PAGES:
        for kind, block in FENCE.findall(page.read_text()):
            if kind not in ("console", "sh"):
                continue
            for line in block.replace("\\\n", " ").splitlines():
                text = line.removeprefix("$ ").strip()
                if text.startswith("rover-kf "):
                    yield _name(page), text


def test_every_command_that_is_shown_is_one():
    """Its verb is there, and so is each of its options."""
    wrong, count = [], 0
    for page, text in _commands():
        count += 1
        words = shlex.split(text, comments=True)
        ends = [n for n, word in enumerate(words) if word in ("|", "&&", ";", ">")]
        try:
            _parse(cli, words[1 : min(ends, default=len(words))])
        except click.UsageError as error:
            wrong.append(f"{page}: {text}: {error.message}")
    print(f"\n{count} commands")
    assert wrong == []
    assert count > 20


def _parse(command, words):
    """Parse as the command line would; nothing is done."""
    context = click.Context(
        command, **{"help_option_names": ["-h", "--help"], **command.context_settings}
    )
    _, rest, _ = command.make_parser(context).parse_args(list(words))
    if isinstance(command, click.Group) and rest:
        _, below, left = command.resolve_command(context, rest)
        _parse(below, left)


def test_every_key_of_the_policy_that_is_named_is_one():
    """With the prefix, wherever it stands."""
    known = policy_fields()
    pattern = re.compile(rf"{re.escape(names.PREFIX)}([a-z]+\.[a-z-]*[a-z])")
    found = {(_name(page), key) for page in PAGES for key in pattern.findall(page.read_text())}
    assert [one for one in found if one[1] not in known] == []
    assert {key for _, key in found} >= {"checkpoint.every", "scaling.mode"}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_python_that_is_shown_is_python(page):
    """Every block can be parsed."""
    for kind, block in FENCE.findall(page.read_text()):
        if kind == "python":
            ast.parse(block)


def test_the_api_page_has_every_public_name():
    """Each name of ``rover_kf`` stands on it."""
    told = set(re.findall(r"autoclass:: rover_kf\.(\w+)", (DOCS / "api.md").read_text()))
    missing = set(rover_kf.__all__) - told - {"RoverError"}  # its whole module is there
    assert missing == set()


def test_the_api_page_can_be_read_without_a_site():
    """Above what Sphinx fills in stand each public name and each argument of what users call."""
    text = (DOCS / "api.md").read_text().partition("```{eval-rst}")[0]
    for name in set(rover_kf.__all__) - {"RoverError"}:
        assert f"\n### {name}\n" in text
    parts = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", text, re.MULTILINE | re.DOTALL))
    for name, call in (
        ("Checkpointer", rover_kf.Checkpointer),
        ("Checkpointer", rover_kf.Checkpointer.step),
        ("ElasticDataLoader", rover_kf.ElasticDataLoader),
        ("RoverClient", rover_kf.RoverClient.train),
    ):
        told = set(re.findall(r"^ *- `(\w+)` \(`", parts[name], re.MULTILINE))
        assert set(inspect.signature(call).parameters) - {"self"} <= told
    assert "shuffle=True" in parts["ElasticDataLoader"]


def _migration(starts):
    """The block of the migration page that begins so."""
    blocks = [block for kind, block in FENCE.findall((DOCS / "migration.md").read_text())]
    (found,) = (block for block in blocks if block.startswith(starts))
    return found


@pytest.fixture
def training(tmp_path, monkeypatch):
    """What the page's loops take for granted: a model, an optimizer, a step."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    done = []

    def train_one(step):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        done.append(step)

    place = {"model": model, "optimizer": optimizer, "train_one": train_one, "rank": 0}
    modules = {"os": os, "pathlib": pathlib, "torch": torch, "Checkpointer": rover_kf.Checkpointer}
    return {**place, **modules, "steps": 200, "done": done}


@pytest.mark.torch
def test_both_loops_of_the_migration_train(training):
    """The loop before goes on from its file; the loop after runs without rover-kf's help, too."""
    before, after = _migration("start = 0\n"), _migration("state = {")
    exec(before, training)
    training["steps"] = 300
    exec(before, training)
    assert training["done"] == list(range(1, 301))
    training["done"].clear()
    exec(after, training)
    assert training["done"] == list(range(1, 301))


@pytest.mark.torch
def test_a_checkpoint_of_dlrovers_layout_is_begun_with(training, tmp_path):
    """The newest one that its tracker names; without a tracker there is none."""
    torch, model = training["torch"], training["model"]
    block = _migration("def first_weights").replace('"/old"', repr(str(tmp_path)))
    training |= {"state": {"model": model}, "checkpointer": rover_kf.Checkpointer()}
    exec(block, training)
    assert training["start"] == 0
    training["train_one"](1)
    saved = {"model": model.state_dict(), "optimizer": training["optimizer"].state_dict()}
    (tmp_path / "40").mkdir()
    torch.save(saved, tmp_path / "40" / "rank_0.pt")
    (tmp_path / "dlrover_latest.txt").write_text("40")
    kept = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    exec(block, training)
    assert training["start"] == 40
    assert torch.equal(model.weight, kept)

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The report as people see it: in a real Chromium, looked at, printed, walked by keyboard."""

from __future__ import annotations

import itertools
import re

import pytest

from rover_kf.report.page import render
from tests.support.browser import browser
from tests.support.jobs.run_records import WEEK, run_record

SECTIONS = (
    "World over time", "Throughput (samples/s)", "Goodput", "Checkpoints (ms blocked a minute)",
    "Decisions", "Stragglers and nodes", "Memory against limits", "Data and shards", "Hangs",
    "Events", "For the next run",
)  # fmt: skip
CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (text) => {
  const [r, g, b] = rgb(text).slice(0, 3).map((one) => one / 255)
    .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const found = getComputedStyle(node).backgroundColor;
    if ((rgb(found)[3] ?? 1) > 0) return found;
  }
  return "rgb(255, 255, 255)";
};
const worst = [];
const texts = "h1, h2, h3, p, dt, dd, td, th, caption, summary, figcaption, svg text";
for (const node of document.querySelectorAll(texts)) {
  const style = getComputedStyle(node);
  const ink = light(node.matches("svg text") ? style.fill : style.color);
  const paper = light(ground(node));
  const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  worst.push([ratio, node.tagName + " " + node.textContent.slice(0, 40)]);
}
return worst.sort((one, other) => one[0] - other[0])[0];
"""


@pytest.fixture(scope="module")
def window():
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a run with everything that can happen to one."""
    path = tmp_path_factory.mktemp("report") / "run.html"
    path.write_text(render(run_record(ranks=4, seconds=1200, every=5, failures=3)))
    return path.as_uri()


def test_every_section_shows_its_values(window, page):
    """The console is clean, nothing but the file is asked for, and the numbers are there to see."""
    window.open(page)
    assert window.console() == []
    assert window.run("return performance.getEntriesByType('resource').length") == 0
    headings = window.run("return [...document.querySelectorAll('h2')].map((one) => one.innerText)")
    assert tuple(headings) == SECTIONS
    seen = window.text()
    for words in (
        "The run succeeded.",
        "9600 of 9600",
        "2 → 4",
        "2 -> 4 pays for itself",
        "the model, from other sizes",
        "training 17 min 30 s 87.5%",
        "at most 20 s",
        "used at most, worst pod 9.0 GiB 90.0%",
        "raised after kills to 10.0 GiB",
        "240 of 240",
        "rank 3 in llm-worker-3 on node-",
        "no step for 301 s: rank 2 (llm-worker-2) did not arrive",
        "rank 0 in llm-worker-0: killed: ended by SIGKILL",
    ):
        assert words in " ".join(seen.split()), words
    drawn = window.run(
        "return Object.fromEntries([...document.querySelectorAll('svg[aria-labelledby]')]"
        ".map((one) => [one.querySelector('title').textContent, one.getBBox().width > 0 && "
        "one.querySelectorAll('rect, polyline').length]))"
    )
    print(drawn)
    assert len(drawn) == 6
    assert all(drawn.values())
    window.click("summary")
    rounds = window.text("details[open] table")
    assert "TrainingProcessFailed: rank 0 in llm-worker-0" in rounds
    assert "4" in rounds


def test_failures_are_drawn_where_they_happened(window, page):
    """At their moment and their rank: the marks' places in the picture are those of the record."""
    window.open(page)
    dots = window.run(
        "return [...document.querySelectorAll('circle.bad')].map((one) => "
        "[+one.getAttribute('cx'), +one.getAttribute('cy'), one.textContent])"
    )
    assert len(dots) == 3
    for number, (x, y, title) in enumerate(dots, 1):
        at = 400 * number - 0.9
        assert x == pytest.approx(56 + at / 1200 * 652, abs=0.2)
        rank = int(re.search(r"rank (\d+)", title)[1])
        assert y == pytest.approx(170 - (rank + 0.5) / 4 * 156, abs=0.2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_can_be_read(window, page, scheme):
    """Text on its ground has the contrast of WCAG 2.2 AA, 4.5 to 1, in what the system asks for."""
    window.emulate(color_scheme=scheme)
    window.open(page)
    ground = window.style("body", "backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 30)"}[scheme]
    ratio, where = window.run(CONTRAST)
    print(f"{scheme}: least contrast {ratio:.2f} ({where})")
    assert ratio >= 4.5, where
    window.emulate(color_scheme="light")


def test_it_can_be_walked_by_keyboard_and_heard(window, page):
    """Each region and each fold is reached by Tab and opened by Enter; all have names, headings
    leave no level out, header cells say what they head, and no id is there twice."""
    window.open(page)
    wanted = window.run("return document.querySelectorAll('summary, [tabindex]').length")
    closed = window.run("return document.querySelectorAll('details:not([open]) [tabindex]').length")
    reached = set()
    for _ in range(wanted - closed):
        window.press("\ue004")
        reached.add(
            window.run(
                "const one = document.activeElement;"
                "return one.getAttribute('aria-label') || one.innerText"
            )
        )
    assert len(reached) == wanted - closed
    assert "" not in reached
    first = window.run(
        "const one = document.querySelector('summary'); one.focus(); return one.innerText"
    )
    window.press("\ue007")
    assert window.run("return document.querySelector('details').open"), first
    levels = window.run(
        "return [...document.querySelectorAll('h1, h2, h3')].map((one) => +one.tagName[1])"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later - sooner <= 1 for sooner, later in itertools.pairwise(levels))
    bad = window.run(
        "return [...document.querySelectorAll('th:not([scope]), table:not(:has(caption)), "
        "svg:not([aria-labelledby]), progress:not([aria-label])')].length"
    )
    twice = window.run(
        "const ids = [...document.querySelectorAll('[id]')].map((one) => one.id);"
        "return ids.length - new Set(ids).size"
    )
    assert (bad, twice, window.run("return document.documentElement.lang")) == (0, 0, "en")
    tree = window.devtools("Accessibility.getFullAXTree")["nodes"]
    unnamed = [
        node["role"]["value"]
        for node in tree
        if node.get("role", {}).get("value") in {"image", "region", "table", "heading"}
        and not node.get("ignored")
        and not node.get("name", {}).get("value")
    ]
    assert unnamed == []


def test_a_narrow_screen_is_enough(window, page):
    """On a phone nothing but wide tables has to be moved sideways."""
    window.resize(390, 800)
    window.open(page)
    width = window.run("return document.documentElement.scrollWidth")
    window.resize(1000, 900)
    assert width <= 390


def test_it_prints(window, page):
    """On several pages of paper, with what is folded on the screen."""
    window.open(page)
    shown = (
        "return [...document.querySelectorAll('details table, details pre')]"
        ".map((one) => one.checkVisibility({contentVisibilityAuto: true}))"
    )
    assert not any(window.run(shown))
    paper = window.pdf()
    assert paper.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type /Page\b", paper))
    window.devtools("Emulation.setEmulatedMedia", media="print")
    folds = window.run(shown)
    window.devtools("Emulation.setEmulatedMedia", media="")
    print(f"{pages} pages, {len(paper)} bytes, {sum(folds)} of {len(folds)} folds on paper")
    assert pages >= 3
    assert folds
    assert all(folds)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("1,000 replicas", {"ranks": 1000, "seconds": 7200, "every": 30, "failures": 40}),
        ("a week", {"ranks": 16, "seconds": WEEK, "every": 120, "failures": 300}),
        ("a week of 1,000", {"ranks": 1000, "seconds": WEEK, "every": 120, "failures": 900}),
    ],
)
def test_the_largest_runs_are_there_at_once(window, tmp_path, name, given):
    """First paint within 2 s and a file of at most 10 MiB, whatever the run was."""
    path = tmp_path / "large.html"
    path.write_text(render(run_record(**given)))
    size = path.stat().st_size
    window.open(path.as_uri())
    painted = window.first_paint()
    print(f"{name}: {size / 2**20:.2f} MiB, first paint after {painted:.2f} s")
    assert size <= 10 << 20
    assert painted <= 2.0
    assert window.console() == []

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``rover-kf simulate`` on a folder of made-up tables."""

from __future__ import annotations

import html.parser

import pytest

from rover_kf import cli
from tests.support.simulated import step_tables


@pytest.fixture
def folder(tmp_path):
    """One program and three jobs of it."""
    step_tables.write(tmp_path, "net", epochs={64: [4000]})
    jobs = [(f"job-{i}", 60 * i, "net", 2 + i, 64) for i in range(3)]
    step_tables.write_workload(tmp_path, "workload-1", jobs)
    return tmp_path


def test_table_and_page_of_each_policy(folder, capsys):
    """A row and a drawing a policy; the page needs nothing else and is well-formed."""
    page = folder / "page.html"
    arguments = ["simulate", str(folder), "--policies", "rover,static", "--nodes", "2"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "-o", str(page)])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "rover" in told
    assert "static" in told
    text = page.read_text(encoding="utf-8")
    html.parser.HTMLParser().feed(text)
    assert text.count("<svg") == 2
    assert "3 jobs of workload-1 on 2 nodes of 4 replicas" in text
    assert "http" not in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--policies", "rover,luck"], "no policy 'luck'; allowed: rover, static"),
        (["--workload", "workload-9"], "no workload 'workload-9'; allowed: workload-1"),
    ],
)
def test_unknown_names_are_refused_with_what_is_allowed(folder, arguments, told, capsys):
    """Exit code 2, and the names there are."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", str(folder), *arguments])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the live view answers, over a real socket, of jobs without coordinator and history."""

from __future__ import annotations

import http.client
import re
import sqlite3
import urllib.parse

import pytest
from local_jobs import FOREVER, job, replica

from rover_kf import errors
from rover_kf.cli.live_view import LiveViewPages, serve
from rover_kf.client import RoverClient, settings


@pytest.fixture
def rover(tmp_path):
    with RoverClient(config=settings.read({}, state=tmp_path / "state")) as made:
        made.submit(job("ended", worker=replica("exit 0")), inject=False)
        made.wait("ended", timeout=60)
        made.submit(job("steady", worker=replica(FOREVER)), inject=False)
        made.wait("steady", until="Running", timeout=60)
        yield made


@pytest.fixture
def address(rover):
    pages = LiveViewPages(rover, namespace=None, every=False, seconds=0.2)
    with serve(pages.respond, 0) as web:
        yield web


def ask(address, path="/", method="GET", host=None):
    there = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(there.hostname, there.port, timeout=30)
    try:
        connection.request(method, path, headers={"Host": host or there.netloc})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def test_jobs_at_work_have_pages(address):
    """The table names those at work with their pages' addresses; a page needs neither a coordinator
    nor a record, and says what was not measured."""
    status, _, text = ask(address)
    assert status == 200
    assert re.findall(r'href="(/jobs[^"]+)"', text) == ["/jobs/default/PyTorchJob/steady"]
    assert "ended" not in re.sub(r"(?s)<script.*?</script>|<header.*?</header>", "", text)
    status, _, text = ask(address, "/jobs/default/PyTorchJob/steady")
    assert status == 200
    assert "PyTorchJob default/steady" in text
    assert "The run has not ended yet." in text
    assert text.count("not measured") > 5
    status, _, text = ask(address, "/jobs/default/PyTorchJob/ended")
    assert (status, "The run succeeded." in text) == (200, True)


def test_every_answer_has_a_policy_of_its_own(address):
    """The script that a page has may run, once; no other, no frame, no other origin."""
    seen = set()
    for _ in range(3):
        _, headers, text = ask(address)
        policy = headers["Content-Security-Policy"]
        (nonce,) = re.findall(r"script-src 'nonce-([^']+)'", policy)
        assert text.count(nonce) == text.count("<script") == 1
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        seen.add(nonce)
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/jobs/default/PyTorchJob/absent", 404),
        ("/jobs/default/PyTorchJob/" + "x" * 5000, 404),
        ("/jobs/..%2f..%2f..%2fetc/PyTorchJob/passwd", 404),
        ("/jobs/%2e%2e/%2e%2e/%2e%2e", 404),
        ("/jobs/default/%00/x", 404),
        ("/jobs/default", 404),
        ("/jobs/default/Secret/steady", 404),
        ("/etc/passwd", 404),
        ("/favicon.ico", 204),
        ("/?any=thing", 200),
    ],
)
def test_other_paths_lead_nowhere(address, path, wanted):
    """Whatever is asked for is a job or is not there; the answer is text and names no file."""
    status, headers, text = ask(address, path)
    assert status == wanted, text
    if status == 404:
        assert headers["Content-Type"].startswith("text/plain")
        assert "root:" not in text


def test_only_its_own_name_is_answered(address):
    """A page of another site that got its name to point here is refused; nothing is written."""
    port = urllib.parse.urlsplit(address).port
    assert ask(address, host=f"localhost:{port}")[0] == 200
    for host in ("rover.example", f"rover.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}"):
        assert ask(address, host=host)[0] == 421, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(address, method=method)[0] == 501


def test_a_history_that_is_away_costs_no_page(rover, address, tmp_path):
    """The job is shown as it is; what the history would add is missing."""
    assert ask(address, "/jobs/default/PyTorchJob/steady")[0] == 200
    with sqlite3.connect(tmp_path / "state" / "history.db") as database:
        database.execute("DROP TABLE IF EXISTS runs")
    with pytest.raises(errors.HistoryUnavailable):
        rover.history.list()
    status, _, text = ask(address, "/jobs/default/PyTorchJob/steady")
    assert (status, "The run has not ended yet." in text) == (200, True)


def test_a_taken_port_is_said(address):
    """With what may be done about it."""
    port = urllib.parse.urlsplit(address).port
    with (
        pytest.raises(errors.InputError, match="allowed: another --port"),
        serve(None, port),
    ):
        pass

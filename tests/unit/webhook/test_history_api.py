# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The history over real HTTP: who reads what, by answers of an API server's reviews."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from controller import controller_runtime
from controller.authorization import ClusterAccess
from controller.http_servers import HistoryMetrics, make_health_app
from rover_kf import errors
from rover_kf.api.records import JobSignature, RunRecord
from rover_kf.history.remote import RemoteHistory
from rover_kf.history.store import SqlHistory
from rover_kf.webhook.history_api import HistoryServer
from tests.support.servers.served_app import Served

TOKENS = {"alice-token": ("alice", ("team",)), "root-token": ("root", ("team", "other", None))}


def record(uid="u1", namespace="team", **changes):
    made = RunRecord(
        uid=uid,
        signature=JobSignature(namespace, "digits", "PyTorchJob", "img:1", "python t.py", 1, 0),
        started_at=100.0,
        updated_at=200.0,
        outcome="succeeded",
        requested={},
        peak={},
    )
    return dataclasses.replace(made, **changes)


class Reviews:
    """Answers as an API server does; counts what it was asked."""

    def __init__(self):
        self.asked = []
        self.away = False

    def request(self, method, path, *, what, body):
        assert method == "POST", path
        self.asked.append(body["kind"])
        if self.away:
            raise errors.ClusterUnavailable(f"{what}: no answer")
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            found = TOKENS.get(spec["token"])
            if found is None:
                return {"status": {"authenticated": False}}
            user = {"username": found[0], "uid": "1", "groups": ["system:authenticated"]}
            return {"status": {"authenticated": True, "user": user}}
        attributes = spec["resourceAttributes"]
        assert (attributes["verb"], attributes["resource"]) == ("list", "pytorchjobs")
        allowed = next(places for name, places in TOKENS.values() if name == spec["user"])
        return {"status": {"allowed": attributes.get("namespace") in allowed}}


@pytest.fixture
def history(tmp_path):
    with SqlHistory(f"sqlite:///{tmp_path}/h.db") as opened:
        opened.upsert(record())
        opened.upsert(record("u2", namespace="other", started_at=200.0))
        yield opened


@pytest.fixture
def reviews():
    return Reviews()


@pytest.fixture
def reader(history, reviews, tmp_path):
    app = web.Application()
    HistoryServer(history, ClusterAccess(reviews)).add_to(app)
    with Served(app) as url:

        def opened(token):
            file = tmp_path / "token"
            file.write_text(token)
            return RemoteHistory(url, token=file)

        yield opened


def test_a_caller_sees_runs_of_its_namespaces(reader):
    """Its own, whole; of another one nothing: not by listing, by id, or by likeness."""
    alice = reader("alice-token")
    assert alice.list(namespace="team") == (record(),)
    assert alice.get("u1") == record()
    assert alice.similar(record().signature) == (record(),)
    assert alice.get("u2") is None
    assert alice.get("nobody") is None
    for ask in (
        lambda: alice.list(namespace="other"),
        alice.list,
        lambda: alice.similar(record(namespace="other").signature),
    ):
        with pytest.raises(errors.HistoryUnavailable, match="403"):
            ask()


def test_who_may_list_all_jobs_sees_all_runs(reader):
    """A cluster's administrator, with the filters of the store."""
    root = reader("root-token")
    assert [run.uid for run in root.list()] == ["u2", "u1"]
    assert [run.uid for run in root.list(limit=1)] == ["u2"]
    assert root.list(outcome="failed") == ()


def test_nobody_without_a_token(reader, tmp_path):
    """A wrong token, none at all."""
    with pytest.raises(errors.HistoryUnavailable, match="401"):
        reader("stolen").list(namespace="team")
    (tmp_path / "token").unlink(missing_ok=True)
    lost = RemoteHistory("http://127.0.0.1:9", token=tmp_path / "token")
    with pytest.raises(errors.HistoryUnavailable, match="no token"):
        lost.get("u1")


def test_answers_are_believed_for_a_minute(reader, reviews):
    """Ten reads cost two reviews."""
    alice = reader("alice-token")
    for _ in range(10):
        alice.list(namespace="team")
    assert reviews.asked == ["TokenReview", "SubjectAccessReview"]


def test_what_is_away_is_told_as_such(reader, reviews):
    """An API server that does not answer: unavailable, and nothing is let through."""
    reviews.away = True
    with pytest.raises(errors.HistoryUnavailable, match="503"):
        reader("alice-token").get("u1")


def test_nothing_is_written_over_http(reader):
    """Records are the controller's."""
    alice = reader("alice-token")
    for change in (
        lambda: alice.upsert(record()),
        lambda: alice.delete("u1"),
        lambda: alice.retain(newer_than=0.0),
    ):
        with pytest.raises(errors.HistoryUnavailable, match="read only"):
            change()


def test_old_runs_are_forgotten(history):
    """Once after the start, then each day; a year's rest is kept with 0 days for ever."""

    async def once(days):
        keeping = controller_runtime.prune_history(
            history, days, clock=lambda: 86400.0 * 10, first=0.0
        )
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(keeping, 0.3)

    asyncio.run(once(0))
    assert len(history.list()) == 2
    history.upsert(record("u3", updated_at=86400.0 * 9.5))
    asyncio.run(once(1))
    assert [run.uid for run in history.list()] == ["u3"]


def test_metrics_tell_of_a_history_that_is_away(tmp_path):
    """A gauge and a counter, on the health port."""
    (tmp_path / "taken").write_text("")
    with SqlHistory(f"sqlite:///{tmp_path}/taken/h.db") as away:
        with pytest.raises(errors.HistoryUnavailable):
            away.list()
        registry = CollectorRegistry()
        registry.register(HistoryMetrics(away))
        text = generate_latest(registry).decode()
    assert "rover_kf_history_available 0.0\n" in text
    assert "rover_kf_history_failures_total 1.0\n" in text
    paths = {route.resource.canonical for route in make_health_app(bool, bool, str).router.routes()}
    assert paths == {"/healthz", "/readyz", "/metrics"}

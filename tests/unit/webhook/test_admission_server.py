# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Reviews over HTTP."""

from __future__ import annotations

import asyncio
import io
import json

from aiohttp.test_utils import TestClient, TestServer

from rover_kf.injection.settings import InjectionSettings
from rover_kf.webhook.admission import make_app
from tests.support.jobs.job_manifests import make_job


def ask(bodies, defaults=dict):
    async def talk():
        app = make_app(InjectionSettings("image"), defaults)
        async with TestClient(TestServer(app)) as client:
            answers = []
            for body in bodies:
                async with client.post("/mutate", data=io.BytesIO(body.encode())) as response:
                    answers.append((response.status, await response.json()))
            return answers

    return asyncio.run(talk())


def test_a_review_is_answered():
    """A POST of an AdmissionReview gets its answer; what is none gets 400 with the reason."""
    review = {"request": {"uid": "1", "operation": "CREATE", "object": make_job()}}
    (ok, answer), (bad, said), (worse, _) = ask([json.dumps(review), "{}", "not json"])
    assert (ok, answer["response"]["allowed"]) == (200, True)
    assert (bad, said["error"]) == (400, "ProtocolError")
    assert worse == 400


def test_defaults_are_read_for_each_review():
    """An edit of the defaults takes effect on the next review."""
    seen = iter([{"checkpoint.every": "5"}, {"checkpoint.every": "zero"}])
    review = json.dumps({"request": {"uid": "1", "operation": "CREATE", "object": make_job()}})
    (_, first), (_, second) = ask([review, review], lambda: next(seen))
    assert [item["response"]["allowed"] for item in (first, second)] == [True, False]


def test_a_large_review_passes():
    """An object near etcd's limit, twice in an UPDATE, is taken."""
    job = make_job()
    job["metadata"]["annotations"] = {"big": "x" * 1_400_000}
    body = {"uid": "1", "operation": "UPDATE", "object": job, "oldObject": job}
    ((status, _),) = ask([json.dumps({"request": body})])
    assert status == 200

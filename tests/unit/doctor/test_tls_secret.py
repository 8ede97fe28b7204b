# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of the certificate of a job whose sidecars encrypt."""

from __future__ import annotations

import base64
import time

import pytest

from rover_kf import errors
from rover_kf.doctor import tls_secret
from rover_kf.injection.inject import inject
from rover_kf.injection.settings import InjectionSettings
from rover_kf.system import tls
from tests.support.jobs.job_manifests import make_job
from tests.support.tls.authority import Authority

NAME = tls.server_name("team")
OURS, OTHERS = Authority("ours"), Authority("others")
SECRET, BUNDLE = "/api/v1/namespaces/team/secrets/pods", "/api/v1/namespaces/team/configmaps/more"
HOME = "/api/v1/namespaces/rover-kf-system/configmaps/rover-kf-sidecar-ca"
POLICY = {"tls.secret": "pods"}
DAY = 86400.0


class Server:
    """Answers with objects' data by path; what is an error is raised."""

    def __init__(self, objects):
        self.objects, self.asked = objects, []

    def request(self, method, path, *, what, query=None, body=None):
        assert (method, query, body) == ("GET", None, None)
        self.asked.append(path)
        found = self.objects.get(path, errors.NoSuchJob(what))
        if isinstance(found, errors.RoverError):
            raise found
        return {"data": found}

    def items(self, path, *, what, query):
        raise AssertionError(path, what, query)


def encoded(content):
    return {key: base64.b64encode(text.encode()).decode() for key, text in content.items()}


def found(objects, policy=POLICY, now=None):
    """Verdict and words of each finding, by its name."""
    job = inject(make_job(policy=policy), settings=InjectionSettings("image")).manifest
    seen = tls_secret.collect(Server(objects), "team", "rover-kf-system", job)
    told = tls_secret.check(seen, time.time() if now is None else now)
    return {one.check: (one.verdict, f"{one.message} | {one.fix}") for one in told}


def good(**more):
    return {SECRET: encoded(OURS.secret(NAME)), HOME: {"ca.crt": OURS.pem}, **more}


def test_nothing_is_asked_of_a_job_that_does_not_encrypt():
    """And nothing said."""
    server = Server({})
    job = inject(make_job(), settings=InjectionSettings("image")).manifest
    seen = tls_secret.collect(server, "team", "rover-kf-system", job)
    assert [*tls_secret.check(seen, 0.0)] == []
    assert server.asked == []


def test_a_certificate_that_all_take_is_good():
    """With its end."""
    told = found(good())
    assert {check: verdict for check, (verdict, _) in told.items()} == {
        "certificate": "good",
        "certificate-controller": "good",
    }
    assert "UTC" in told["certificate"][1]


def test_a_bundles_authorities_count():
    """For pods; the controller has its own."""
    policy = {**POLICY, "tls.authorities": "more"}
    content = OURS.secret(NAME)
    objects = good(**{BUNDLE: {"ca.crt": content.pop("ca.crt")}, SECRET: encoded(content)})
    assert found(objects, policy)["certificate"][0] == "good"
    del objects[BUNDLE]
    verdict, words = found(objects, policy)["certificate"]
    assert verdict == "broken"
    assert "there is no configmap more in team" in words


WRONG = {
    "no secret": ({SECRET: errors.NoSuchJob("x")}, "there is no secret pods in team"),
    "over": ({SECRET: encoded(OURS.secret(NAME, ends=-60.0))}, "certificate has expired"),
    "another name": (
        {SECRET: encoded(OURS.secret(tls.server_name("x")))},
        "has to name rover-kf.team.svc",
    ),
    "no authority": (
        {SECRET: encoded(OURS.secret(NAME) | {"ca.crt": ""})},
        "no certificate of an authority",
    ),
    "no base64": ({SECRET: {"tls.crt": "?", "tls.key": "?"}}, "no tls.crt in pods"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_secret_that_does_not_do_is_broken(what):
    """By what is wrong with it, and where the way is; of the controller nothing can be said."""
    objects, words = WRONG[what]
    told = found(good(**objects))
    assert [*told] == ["certificate"]
    assert told["certificate"][0] == "broken"
    assert words in told["certificate"][1]
    assert "docs/security.md" in told["certificate"][1]


def test_one_that_ends_soon_is_a_warning():
    """It should have been renewed."""
    verdict, words = found(good(), now=time.time() + 0.95 * DAY)["certificate"]
    assert verdict == "warning"
    assert "kubectl -n team describe certificate" in words


def test_a_controller_that_would_refuse_it_is_broken():
    """Not told of any authority, or of another one alone."""
    for authority, words in ((None, "is not told whose"), (OTHERS.pem, "unable to get local")):
        told = found(good(**{HOME: {"ca.crt": authority} if authority else {}}))
        assert told["certificate"][0] == "good"
        assert told["certificate-controller"][0] == "broken"
        assert words in told["certificate-controller"][1]
        assert "create configmap rover-kf-sidecar-ca" in told["certificate-controller"][1]


def test_what_may_not_be_read_is_unknown():
    """With the right that is missing."""
    refused = errors.InputError("secrets is forbidden")
    told = found(good(**{SECRET: refused}))
    assert told["certificate"][0] == "unknown"
    assert "get secrets and configmaps of team" in told["certificate"][1]
    told = found(good(**{HOME: errors.InputError("configmaps is forbidden")}))
    assert told["certificate"][0] == "good"
    assert told["certificate-controller"][0] == "unknown"

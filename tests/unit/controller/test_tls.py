# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The webhook's certificate in its Secret, made once by any number of replicas."""

from __future__ import annotations

import base64
import concurrent.futures
import time

import pytest

from controller.webhook_certificate import CertificateSecret
from rover_kf import errors
from rover_kf.cluster.kubernetes.api import KubernetesApi
from rover_kf.webhook.certificates import LIFE, Certificates
from tests.support.faults.api_stand_in import failure, serving

SECRET = "/api/v1/namespaces/rover-kf-system/secrets/rover-kf-webhook"
CONFIGURATION = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/rover-kf-webhook"
)
HOSTS = ("rover-kf-webhook.rover-kf-system.svc",)


@pytest.fixture
def server():
    with serving() as found:
        yield found


@pytest.fixture
def secret(server):
    return make(server)


def make(server):
    return CertificateSecret(
        KubernetesApi(server.client()),
        namespace="rover-kf-system",
        name="rover-kf-webhook",
        hook="inject.rover-kf.io",
        hosts=HOSTS,
    )


def stored(server):
    data = server.objects[SECRET]["data"]
    return Certificates.from_data({key: base64.b64decode(value) for key, value in data.items()})


def test_it_is_made_once_and_kept(secret, server):
    """The first call makes the Secret, the next one reads it and writes nothing."""
    made = secret.ensure(time.time())
    assert stored(server) == made
    assert server.objects[SECRET]["type"] == "kubernetes.io/tls"
    assert secret.ensure(time.time()) == made
    assert [request[0] for request in server.requests] == ["GET", "POST", "GET"]


def test_replicas_agree(server):
    """However many start at once, all serve the certificate that is stored."""
    secrets = [make(server) for _ in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda one: one.ensure(time.time()), secrets))
    assert set(found) == {stored(server)}


def test_it_is_renewed_before_it_ends(secret, server):
    """Near its end a new one is written that trusts the old authority as well."""
    now = time.time()
    old = secret.ensure(now)
    new = secret.ensure(now + LIFE.total_seconds() * 0.95)
    assert new.certificate != old.certificate
    assert new.authority.endswith(old.authority)
    assert stored(server) == new


def test_renewing_replicas_agree(server):
    """A renewal that lost the race adopts the winner's certificate."""
    now = time.time()
    make(server).ensure(now)
    later = now + LIFE.total_seconds() * 0.95
    secrets = [make(server) for _ in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda one: one.ensure(later), secrets))
    assert set(found) == {stored(server)}


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": "AAAA"}, {"tls.key": "not base64!"}])
def test_a_spoilt_secret_is_written_anew(secret, server, data):
    """A Secret that is empty, cut short or not ours is replaced by a good one."""
    server.put(SECRET, {"metadata": {"name": "rover-kf-webhook"}, "data": data})
    assert secret.ensure(time.time()) == stored(server)


def test_a_missing_right_is_said(secret, server):
    """What the API server forbids is an error with its message, not a loop."""
    server.hooks.append(lambda *_: failure(403, "Forbidden", "cannot get secrets"))
    with pytest.raises(errors.InputError, match="cannot get secrets"):
        secret.ensure(time.time())


def test_endless_conflicts_end(secret, server):
    """Others who change the Secret all the time cannot hold the controller in a loop."""
    conflict = failure(409, "AlreadyExists", "exists")
    server.hooks.append(lambda method, _: conflict if method == "POST" else None)
    with pytest.raises(errors.ClusterUnavailable, match="all the time"):
        secret.ensure(time.time())


def test_the_api_server_is_told_whom_to_trust(secret, server):
    """Only our webhook's caBundle is patched, strategically by its name, and only if it differs."""
    hook = {"name": "inject.rover-kf.io", "clientConfig": {"service": {"name": "x"}}}
    server.put(CONFIGURATION, {"metadata": {"name": "rover-kf-webhook"}, "webhooks": [hook]})
    made = secret.ensure(time.time())
    assert secret.trust(made)
    method, path, _, body, headers = server.requests[-1]
    bundle = base64.b64encode(made.authority).decode()
    assert (method, path) == ("PATCH", CONFIGURATION)
    config = {"name": "inject.rover-kf.io", "clientConfig": {"caBundle": bundle}}
    assert body == {"webhooks": [config]}
    assert headers["content-type"] == "application/strategic-merge-patch+json"
    server.put(CONFIGURATION, {"metadata": {"name": "rover-kf-webhook"}, "webhooks": [config]})
    assert not secret.trust(made)
    assert server.requests[-1][0] == "GET"


def test_a_missing_configuration_is_said(secret):
    """Without the webhook configuration there is nothing to patch: the error names it."""
    made = secret.ensure(time.time())
    with pytest.raises(errors.NoSuchJob, match="webhook configuration rover-kf-webhook"):
        secret.trust(made)

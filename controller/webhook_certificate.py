# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The webhook's certificate: made once, kept in a Secret, renewed before it ends.

Any number of replicas may do this at once. Whoever writes the Secret first wins, the others adopt
what it wrote; every write names the version that it read.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from rover_kf import errors
from rover_kf.cluster.kubernetes.api import STRATEGIC_PATCH, KubernetesApi
from rover_kf.webhook.certificates import Certificates, issue

_ATTEMPTS = 5


class CertificateSecret:
    """The Secret and the webhook configuration that trusts it.

    Args:
        api: with rights on exactly these two objects.
        namespace: of the Secret.
        name: of the Secret and of the MutatingWebhookConfiguration.
        hook: name of the one webhook in that configuration.
        hosts: DNS names that the API server calls.
    """

    def __init__(
        self, api: KubernetesApi, *, namespace: str, name: str, hook: str, hosts: Sequence[str]
    ) -> None:
        self._api = api
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"
        self._name, self._hook, self._hosts = name, hook, tuple(hosts)

    def ensure(self, now: float) -> Certificates:
        """Certificates that are good from now on; the Secret holds them.

        Raises:
            ClusterUnavailable: the API server does not answer, or others kept changing the Secret.
            InputError: a right is missing; the message is the API server's.
        """
        for _ in range(_ATTEMPTS):
            try:
                return self._read_or_write(now)
            except (errors.Conflict, errors.JobExists):  # noqa: PERF203 - five times at most
                continue  # another replica was faster: adopt what it wrote
        raise errors.ClusterUnavailable(f"secret {self._name} is changed by others all the time")

    def trust(self, certificates: Certificates) -> bool:
        """Make the API server trust them; False if it did already.

        Raises:
            ClusterUnavailable, NoSuchJob, InputError: the configuration cannot be changed.
        """
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + self._name
        what = f"webhook configuration {self._name}"
        bundle = base64.b64encode(certificates.authority).decode()
        found = self._api.request("GET", path, what=what)
        configs = {hook["name"]: hook["clientConfig"] for hook in found.get("webhooks") or ()}
        if configs.get(self._hook, {}).get("caBundle") == bundle:
            return False
        body = {"webhooks": [{"name": self._hook, "clientConfig": {"caBundle": bundle}}]}
        self._api.request("PATCH", path, what=what, body=body, content_type=STRATEGIC_PATCH)
        return True

    def _read_or_write(self, now: float) -> Certificates:
        path, what = f"{self._collection}/{self._name}", f"secret {self._name}"
        try:
            found = self._api.request("GET", path, what=what)
        except errors.NoSuchJob:
            fresh = issue(self._hosts, now)
            body = self._body(fresh, {"name": self._name})
            self._api.request("POST", self._collection, what=what, body=body)
            return fresh
        known = _certificates_in(found)
        if known is not None and known.usable(self._hosts, now):
            return known
        fresh = issue(self._hosts, now)
        if known is not None:
            # Replicas that still serve the old one stay trusted until they look again.
            fresh = fresh.also_trusting(known)
        version = found["metadata"]["resourceVersion"]
        body = self._body(fresh, {"name": self._name, "resourceVersion": version})
        self._api.request("PUT", path, what=what, body=body)
        return fresh

    def _body(self, certificates: Certificates, metadata: dict[str, str]) -> dict[str, Any]:
        data = {k: base64.b64encode(v).decode() for k, v in certificates.to_data().items()}
        labels = {"app.kubernetes.io/name": "rover-kf", "app.kubernetes.io/component": "webhook"}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {**metadata, "labels": labels},
            "type": "kubernetes.io/tls",
            "data": data,
        }


def _certificates_in(secret: dict[str, Any]) -> Certificates | None:
    data = secret.get("data") or {}
    try:
        return Certificates.from_data({k: base64.b64decode(v) for k, v in data.items()})
    except (errors.ProtocolError, ValueError):
        return None  # not ours, or cut short: written anew

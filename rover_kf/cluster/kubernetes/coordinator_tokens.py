# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The tokens that the controller sends to coordinators: one per job, for minutes.

The owner of a job reads what its pods receive. A token therefore names the job as its audience, and
no other job's sidecar accepts it (rover_kf.sidecar.http.authentication).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rover_kf import errors
from rover_kf.api.jobs import JobKey
from rover_kf.cluster.kubernetes.api import KubernetesApi, resource_path

LIFETIME_SECONDS = 600
"""The shortest lifetime that the API server grants."""
REUSE_SECONDS = 240.0
"""How long a token is sent again; a slow request must not outlive it."""
MAX_TOKENS = 1024


class CoordinatorTokens:
    """A source of tokens, by TokenRequest for the controller's own account; thread-safe.

    Args:
        api: of the cluster, with the controller's rights.
        account: ``namespace:name`` of the controller's service account.
        clock: monotonic seconds.
    """

    def __init__(
        self, api: KubernetesApi, account: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._clock = api, clock
        self._namespace, _, self._name = account.partition(":")
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[float, str]] = {}

    def get(self, key: JobKey) -> str:
        """Return a token that only the sidecars of this job accept.

        Raises:
            ClusterUnavailable: the API server does not answer or refuses to issue it.
        """
        audience, now = key.controller_audience, self._clock()
        with self._lock:
            known = self._tokens.get(audience)
        if known is not None and known[0] > now:
            return known[1]
        token = self._request(audience)
        with self._lock:
            self._tokens.pop(audience, None)
            self._tokens[audience] = (now + REUSE_SECONDS, token)
            while len(self._tokens) > MAX_TOKENS:
                del self._tokens[next(iter(self._tokens))]
        return token

    def _request(self, audience: str) -> str:
        account = ("namespaces", self._namespace, "serviceaccounts", self._name)
        path = resource_path("/api/v1", *account, "token")
        spec = {"audiences": [audience], "expirationSeconds": LIFETIME_SECONDS}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        what = f"a token of the service account {self._namespace}/{self._name}"
        try:
            reply = self._api.request("POST", path, what=what, body=body)
            return str(reply["status"]["token"])
        except (errors.InputError, errors.NoSuchJob) as refusal:
            raise errors.ClusterUnavailable(
                f"{refusal}; the controller's Role allows to create serviceaccounts/token of its "
                "own account: apply the manifests of this version"
            ) from refusal
        except (KeyError, TypeError) as cause:
            raise errors.ClusterUnavailable(f"the API server's answer holds no {what}") from cause

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Other sidecars over TCP, with this pod's token: the client side of a sidecar.

Satisfies seams.Peers, and forwards what launcher and trainer post for the coordinator unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http
import logging
import pathlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

import aiohttp

from rover_kf import errors
from rover_kf.api import codec, error_wire, names
from rover_kf.api.coordinator_state import CoordinatorState
from rover_kf.sidecar.http.connections import AddressCache, KeepAliveConnector
from rover_kf.sidecar.interfaces import ResponseStream
from rover_kf.sidecar.settings import SidecarSettings
from rover_kf.sidecar.state_replica import StateReplica
from rover_kf.sidecar.tls import reloading
from rover_kf.sidecar.tls.reloading import ReloadingTls

_log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 60.0
"""Seconds that a request to the coordinator is tried again; an answer is waited for for longer."""
CONNECT_SECONDS = 3.0
HOLD_SECONDS = 10.0
"""Within which a sidecar that starts looks up no name, unless its pod's launcher wants to join: a
name that is asked for before its pod is ready is unknown to all for half a minute."""
SILENCE_SECONDS = 30.0
"""A peer that sends nothing for so long is taken for gone."""
BUFFER_BYTES = 1 << 20
"""Of a peer's bytes, held until they are taken; what comes beyond it waits on the network."""
TOKEN_SECONDS = 5.0
"""How long a token that was read is used: the kubelet replaces it long before it ends."""


@dataclasses.dataclass(slots=True)
class _ClientResponseStream:
    status: int
    headers: dict[str, str]
    response: aiohttp.ClientResponse

    async def chunks(self, size: int) -> AsyncIterator[bytes]:
        try:
            async for chunk in self.response.content.iter_chunked(size):
                yield chunk
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as cause:
            raise errors.ClusterUnavailable(f"{self.response.url} broke off: {cause}") from cause


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """Report that a request could not reach ``what``, and why."""
    try:
        yield
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as cause:
        told = reloading.explain_request_error(cause)
        raise errors.ClusterUnavailable(f"{what} cannot be reached: {told}") from cause


class HttpPeerClient:
    """A session for all requests to other sidecars; without ``tls`` by plain HTTP."""

    def __init__(self, settings: SidecarSettings, tls: ReloadingTls | None = None) -> None:
        self._tls, self._scheme = tls, "https" if tls else "http"
        # Its own name it need not know, and may not for as long as its pod is not ready.
        self._host = settings.address if settings.is_coordinator else settings.coordinator_host
        self._coordinator = f"{self._scheme}://{_bracket_ipv6(self._host)}:{settings.port}"
        self._ledger = f"{self._scheme}://{_bracket_ipv6(settings.ledger_host)}:{settings.port}"
        self._resolver: AddressCache | None = None
        self._connector = KeepAliveConnector()
        self._resolves_early = settings.is_coordinator and not settings.keeps_host
        self._token = Token(settings.token_home / "token")
        self._session: aiohttp.ClientSession | None = None
        self.state_replica = StateReplica(settings)
        self._fetching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the session."""
        self.state_replica.load()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        # Long polls of every launcher and trainer of the pod go through it: no limit.
        self._resolver = AddressCache(aiohttp.ThreadedResolver())
        if not self._resolves_early:
            self._resolver.pause(HOLD_SECONDS)
        connector = aiohttp.TCPConnector(
            limit=0,
            use_dns_cache=False,
            resolver=self._resolver,
            socket_factory=self._connector.create_socket,
        )
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)

    async def stop(self) -> None:
        """Close it."""
        if self._fetching is not None:
            self._fetching.cancel()
        if self._session is not None:
            await self._session.close()

    async def forward(self, path: str, body: bytes) -> tuple[int, bytes]:
        """POST to the coordinator as it is, once; a cancelled call closes the connection.

        A coordinator that wants this pod's copy of its predecessor's state gets it first.

        Raises:
            ClusterUnavailable: it cannot be reached, or was replaced.
        """
        status, found = await self._exchange("POST", path, body)
        if status == names.STATUS_COPY_WANTED and self.state_replica.state is not None:
            await self._exchange("POST", names.PATH_STATE, codec.dumps(self.state_replica.state))
            status, found = await self._exchange("POST", path, body)
        return status, found

    async def forward_data(self, path: str, body: bytes) -> tuple[int, bytes]:
        """POST to the sidecar that has the ledger, where that is another world's, once.

        Raises:
            ClusterUnavailable: it cannot be reached.
        """
        return await self._post(self._ledger + path, body)

    async def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        url, headers = self._coordinator + path, self._headers() | self.state_replica.headers()
        with _explained(f"the coordinator at {self._coordinator}"):
            async with self._require_session().request(
                method, url, data=body, headers=headers, **self._tls_options()
            ) as response:
                self.state_replica.admit(response.status, response.headers)
                found = await response.read()
                idle = self._fetching is None or self._fetching.done()
                if idle and self.state_replica.is_behind(response.headers):
                    self._fetching = asyncio.create_task(self._fetch())
                return response.status, found

    async def _post(self, url: str, body: bytes) -> tuple[int, bytes]:
        limit = aiohttp.ClientTimeout(total=2 * CONNECT_SECONDS)
        with _explained(url):
            async with self._require_session().post(
                url, data=body, headers=self._headers(), timeout=limit, **self._tls_options()
            ) as response:
                return response.status, await response.read()

    async def _fetch(self) -> None:
        """Get the newest copy; the next answer offers it again if that fails."""
        try:
            status, body = await self._exchange("GET", names.PATH_STATE, None)
            if status < http.HTTPStatus.BAD_REQUEST:
                self.state_replica.update(codec.loads(CoordinatorState, body))
        except errors.RoverError as error:
            _log.info("no copy of the coordinator's state: %s", error)

    def allow_lookups(self) -> None:
        """The pod's launcher or trainer asks for the coordinator: its name is looked up now."""
        if self._resolver is not None:
            self._resolver.resume()

    def set_coordinator_address(self, address: str) -> None:
        """The coordinator says where it is."""
        self.locate(self._host, address)

    def locate(self, host: str, address: str) -> None:
        """Somebody who knows says where a pod is: nobody is awaited where it was before."""
        if self._resolver is not None:
            self._connector.abort_connecting(self._resolver.prefer(host, address))

    async def post(self, host: str, path: str, message: object, reply: type[T]) -> T:
        """POST to the sidecar at host:port, once.

        Raises:
            ClusterUnavailable: it cannot be reached.
            RoverError: of the class that it answered with.
        """
        status, data = await self._post(f"{self._scheme}://{host}{path}", codec.dumps(message))
        if status < http.HTTPStatus.BAD_REQUEST:
            return codec.loads(reply, data)
        raise error_wire.decode_error(status, data, unreadable=errors.ClusterUnavailable)

    async def call_coordinator(self, path: str, message: object, reply: type[T]) -> T:
        """See seams.Peers."""
        if path == names.PATH_COMMIT_RESOLVE:
            self.allow_lookups()  # a trainer waits for it, perhaps without a launcher of ours
        until, delay = time.monotonic() + RETRY_SECONDS, 0.1
        body = codec.dumps(message)
        while True:
            begun = time.monotonic()
            try:
                status, data = await self.forward(path, body)
                if status < http.HTTPStatus.BAD_REQUEST:
                    return codec.loads(reply, data)
                raise error_wire.decode_error(status, data, unreadable=errors.ClusterUnavailable)
            except errors.ClusterUnavailable:
                now = time.monotonic()
                if now - begun > RETRY_SECONDS:  # it was there, and is gone only now
                    until = now + RETRY_SECONDS
                if now + delay > until:
                    raise
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, 2.0)

    @contextlib.asynccontextmanager
    async def get(
        self, address: str, path: str, *, offset: int = 0
    ) -> AsyncIterator[ResponseStream]:
        """See seams.Peers."""
        url = f"{self._scheme}://{address}{path}"
        headers = self._headers()
        if offset:
            headers["Range"] = f"bytes={offset}-"
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS
        )
        with _explained(url):
            async with self._require_session().get(
                url,
                headers=headers,
                timeout=timeout,
                read_bufsize=BUFFER_BYTES,
                **self._tls_options(),
            ) as response:
                yield _ClientResponseStream(response.status, dict(response.headers), response)

    def _tls_options(self) -> dict[str, Any]:
        # The token goes to nobody whose certificate is not taken: it is sent after the handshake.
        return (
            {"ssl": self._tls.client_context, "server_hostname": self._tls.name}
            if self._tls
            else {}
        )

    def _require_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise errors.ClusterUnavailable("this sidecar is starting or stopping")
        return self._session

    def _headers(self) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self._token.read()}",
            "Content-Type": "application/json",
        }


@dataclasses.dataclass(slots=True)
class Token:
    """A token file, read again now and then: it is replaced while we run."""

    path: pathlib.Path
    value: str = ""
    read_at: float = 0.0

    def read(self) -> str:
        """The token.

        Raises:
            ClusterUnavailable: there is no such file (not yet mounted).
        """
        if not self.value or time.monotonic() - self.read_at > TOKEN_SECONDS:
            try:
                self.value = self.path.read_text().strip()
            except OSError as cause:
                raise errors.ClusterUnavailable(f"no token in {self.path}: {cause}") from cause
            self.read_at = time.monotonic()
        return self.value


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host

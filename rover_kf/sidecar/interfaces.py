# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the parts of a sidecar ask of one another; daemon.py joins them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class EventRecorder(Protocol):
    """Where events of the job are told; at the coordinator in the end."""

    def record(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Tell one event; returns at once, never raises."""


class ResponseStream(Protocol):
    """A reply whose body is read in pieces."""

    status: int
    headers: dict[str, str]

    def chunks(self, size: int) -> AsyncIterator[bytes]:
        """The body."""


class PeerClient(Protocol):
    """Other sidecars, reached over TCP with this pod's token."""

    async def call_coordinator(self, path: str, message: object, reply: type[T]) -> T:
        """POST to the coordinator; retries while it cannot be reached, up to a minute.

        Raises:
            ClusterUnavailable: it stayed unreachable.
            RoverError: of the class that the coordinator answered with.
        """

    async def post(self, host: str, path: str, message: object, reply: type[T]) -> T:
        """POST to the sidecar at host:port, once, for a few seconds at most.

        Raises:
            ClusterUnavailable: it cannot be reached, or has not answered in time.
            RoverError: of the class that it answered with.
        """

    def get(
        self, address: str, path: str, *, offset: int = 0
    ) -> contextlib.AbstractAsyncContextManager[ResponseStream]:
        """GET from the sidecar at host:port.

        Args:
            address: host:port.
            path: with its query.
            offset: first byte of the body that is wanted; above 0 it is asked for as a range.

        Raises:
            ClusterUnavailable: it cannot be reached.
        """

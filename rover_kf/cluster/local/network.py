# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Loopback addresses as pod addresses: 127.1.J.I, J a job, I its replica; used by ``operator``.

J is leased by a bound socket, so that several embedded clusters on a machine do not meet and a
killed one gives its addresses back. A replica keeps its address when its pod is replaced: names
were written into its peers' environment as addresses when they started.
"""

from __future__ import annotations

import contextlib
import re
import socket
import zlib

from rover_kf import errors

LEASE_PORT = 7410
"""Of the last address of a job's network; whoever has bound it has the network."""
_MOST_PODS = 250


class NetworkLease:
    """One job's addresses; ``close`` gives them back."""

    def __init__(self, job: str, masters: int) -> None:
        self._job, self._masters = job, masters
        self._socket, self._net = _bind(job)

    def address(self, replica_type: str, index: int) -> str:
        """Address of a replica.

        Raises:
            InputError: the job has more replicas than a machine has addresses for.
        """
        rank = index + (self._masters if replica_type == "worker" else 0)
        if rank >= _MOST_PODS:
            raise errors.InputError(
                f"job {self._job} wants replica {rank}; embedded jobs have at most {_MOST_PODS}"
            )
        return f"127.1.{self._net}.{rank + 1}"

    def resolve(self, text: str, namespace: str) -> str:
        """Replace the job's service names in a text by addresses."""
        pattern = (
            rf"(?<![\w.-]){re.escape(self._job)}-(master|worker)-(\d+)"
            rf"(?:\.{re.escape(namespace)}(?:\.svc(?:\.cluster\.local)?)?)?(?![\w-])"
        )
        return re.sub(pattern, lambda hit: self.address(hit[1], int(hit[2])), text)

    def close(self) -> None:
        """Give the addresses back."""
        self._socket.close()


def _bind(job: str) -> tuple[socket.socket, int]:
    start = zlib.crc32(job.encode())
    for offset in range(256):
        net = (start + offset) % 256
        lease = socket.socket()
        with contextlib.suppress(OSError):
            lease.bind((f"127.1.{net}.255", LEASE_PORT))
            return lease, net
        lease.close()
    raise errors.ClusterUnavailable("all 256 loopback networks are in use; end another job first")

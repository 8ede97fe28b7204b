# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A network namespace with a loopback device and nothing else.

All that the benchmark starts lives in it, so its ports and the simulated pods' addresses are those
of nobody else, also beside a test cluster. No bridge, no mount: it is gone with its name.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

from testcluster import network
from testcluster.commands import run

NAMESPACE = "rover-bench"
PODS = "10.200.0.0/16"
"""Addresses of simulated pods. Linux takes each of them for its own (AnyIP): a server that listens
on all addresses answers on every one, and sees which one it was called by."""
HOST = network.address(0)
"""Where the API server's certificate says that it is; on the loopback device here."""


@contextlib.contextmanager
def made() -> Iterator[None]:
    """The namespace while the block runs; one that a killed run left is made anew."""
    remove()
    run(f"ip netns add {NAMESPACE}")
    try:
        for words in (
            "link set lo up",
            f"addr add {HOST}/32 dev lo",
            f"route add local {PODS} dev lo",
            # An API server wants a default route to be sure of its address.
            "route add default dev lo",
        ):
            run(f"ip -n {NAMESPACE} {words}")
        yield
    finally:
        remove()


def remove() -> None:
    """Remove the namespace, if it is there."""
    if pathlib.Path("/run/netns", NAMESPACE).exists():
        run(f"ip netns del {NAMESPACE}")


def enter() -> list[str]:
    """Words before a command that run it in the namespace."""
    return ["nsenter", f"--net=/run/netns/{NAMESPACE}"]

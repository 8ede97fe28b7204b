# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A disk of a few MiB below a claim, so that it can be full: a file system of its own in a file."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator

from testcluster.cluster import Cluster
from testcluster.commands import run
from testcluster.trainer import USER


@contextlib.contextmanager
def mounted(cluster: Cluster, place: pathlib.Path, mebibytes: int) -> Iterator[pathlib.Path]:
    """Have such a disk at that place, here and on every node; before pods mount what it is in.

    Args:
        cluster: whose nodes see this machine's files.
        place: a folder that is made here.
        mebibytes: its size.
    """
    image = place.with_name(f"{place.name}.img")
    place.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)])
    device = run(["losetup", "--find", "--show", str(image)]).strip()
    try:
        run(["mount", device, str(place)])
        # Nodes have mounts of their own; one that boots later takes over this machine's.
        for node in cluster.nodes:
            node.run(["mount", device, str(place)])
        os.chown(place, USER, USER)
        yield place
    finally:
        for node in cluster.nodes:
            node.run(["umount", "--lazy", str(place)])
        run(["umount", "--lazy", str(place)])
        run(["losetup", "--detach", device])  # done when the last mount is gone
        image.unlink()

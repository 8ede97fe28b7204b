# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The bucket layout of DistributedDataParallel, and its text in a snapshot's metadata."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping

from rover_kf.checkpoint.format.snapshot import reading

KEY = "rover.buckets"
"""Metadata: JSON of ``[[ranks, digest of the parameters, [[indices of parameters], …]], …]``."""


@dataclasses.dataclass(frozen=True, slots=True)
class BucketLayout:
    """The order in which one module's gradients lie in its buckets."""

    world_size: int
    """Ranks that sum these buckets."""
    parameters: str
    """Digest of the names, shapes and types of the parameters that have gradients."""
    buckets: tuple[tuple[int, ...], ...]
    """Of each bucket, the indices of its parameters; the digest has them in that numbering."""

    def order(self) -> tuple[int, ...]:
        """Return all indices, bucket by bucket."""
        return tuple(index for bucket in self.buckets for index in bucket)


def to_text(layouts: Iterable[BucketLayout]) -> str:
    """Encode layouts for the metadata."""
    plain = [[each.world_size, each.parameters, each.buckets] for each in layouts]
    return json.dumps(plain, separators=(",", ":"))


def read(metadata: Mapping[str, str]) -> tuple[BucketLayout, ...]:
    """Decode the layouts of a snapshot, in the order in which the modules were built.

    Raises:
        CorruptSnapshot: they cannot be read.
    """
    with reading("bucket layouts"):
        return tuple(
            BucketLayout(
                int(world_size),
                str(parameters),
                tuple(tuple(map(int, bucket)) for bucket in buckets),
            )
            for world_size, parameters, buckets in json.loads(metadata.get(KEY, "[]"))
        )

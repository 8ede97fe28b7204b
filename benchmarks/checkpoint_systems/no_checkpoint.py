# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""No checkpoints at all: the zero from which the others' memory is counted."""

from __future__ import annotations

from benchmarks.checkpoint_systems.system_process import Peer, serve


class Nothing(Peer):
    """Returns at once."""

    def save(self, step: int) -> None:
        """Keep nothing."""


if __name__ == "__main__":
    serve(Nothing())

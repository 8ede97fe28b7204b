# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Run kopf with the controller's handlers; print the name of each node that is told of."""

from __future__ import annotations

import kopf

from controller import main


class Told:
    """In the place of the reconcilers."""

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def on_node_change(self, name: str, *, silent: bool) -> None:
        """A node's object as it was listed, or as it has changed."""
        print(name, "silent" if silent else "heard", flush=True)


if __name__ == "__main__":
    registry = main.handlers(nodes=True)
    kopf.run(
        clusterwide=True,
        standalone=True,
        registry=registry,
        identity="test",
        memo=kopf.Memo(rover=Told()),
    )

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""rover-kf beside a sidecar of its own; blocking, or with the argument ``overlap``.

What a training loop persists beside its steps is held back by the policy's own cap; where somebody
waits for the end of it (``durable``) it is not.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile
import threading

from benchmarks.checkpoint_systems.sidecar import Sidecar
from benchmarks.checkpoint_systems.system_process import Peer, serve
from benchmarks.checkpoint_systems.workload import Loop
from rover_kf.api import names
from rover_kf.api.policy import CheckpointPolicy
from rover_kf.api.status import Ack
from rover_kf.trainer import settings as trainer_settings
from rover_kf.trainer.checkpointer import Checkpointer
from rover_kf.trainer.sidecar_client import SidecarClient

NEVER = 1e8
FLUSH_SECONDS = 600.0


class Rover(Peer):
    """The arena in memory, as in a pod; files where the others have theirs."""

    def __init__(self, *, overlap: bool) -> None:
        self._asked_overlap = overlap
        self._round = 1
        self._persisting: threading.Thread | None = None

    def open(self, loop: Loop, folder: pathlib.Path) -> None:
        """A sidecar process, and what a training script calls first."""
        super().open(loop, folder)
        self._home = pathlib.Path(
            tempfile.mkdtemp(prefix=os.environ["TORCHELASTIC_RUN_ID"], dir="/dev/shm")
        )
        policy = CheckpointPolicy(keep=1, persist_seconds=NEVER)
        self._sidecar = Sidecar(self._home, folder, 16 << 30, policy)
        self._sidecar.start()
        self._checkpointer = self._fresh()
        self._checkpointer.restore(loop.state)

    def save(self, step: int) -> None:
        """In memory when it returns, or at the next optimizer step."""
        self._last = step
        self._checkpointer.save(step, self.loop.state)

    def waited(self) -> float:
        """In the hook before the step."""
        return self._checkpointer._stager.take_waited() * 1e3

    def settle(self) -> None:
        """Copied, and what the first seal made the sidecar persist is done."""
        self._checkpointer._stager.finish()
        if self._persisting is not None:
            self._persisting.join()

    def begin(self, step: int) -> None:
        """In memory, and the sidecar asked for it on storage, as by the policy."""
        self.save(step)
        saver = self._checkpointer._stager
        saver.finish()
        self._before = (saver.issued, saver.sealed)
        self._persisting = threading.Thread(target=self._wait, args=(step,))
        self._persisting.start()

    def is_busy(self) -> bool:
        """Until the manifest is committed."""
        return self._persisting is not None and self._persisting.is_alive()

    def durable(self, step: int) -> None:
        """Files and folders are synced by the sidecar itself."""
        self.save(step)
        self._checkpointer._stager.finish()
        self._flush()

    def capped(self, step: int) -> bool:
        """The same as training persists it."""
        self.save(step)
        self._checkpointer._stager.finish()
        self._wait(step)
        return True

    def die(self) -> None:
        """The trainer alone: memory and sidecar stay, and the launcher tells of its end."""
        self._checkpointer.close()
        SidecarClient(self._home).request(names.PATH_EXAMINE, Ack(), Ack, timeout=60)

    def restore(self, loop: Loop) -> None:
        """As a successor of this process does."""
        self._round += 1
        self._checkpointer = self._fresh()
        step = self._checkpointer.restore(loop.state)
        assert step
        assert self._checkpointer.restored_from == "memory"

    def account(self) -> dict[str, int]:
        """What is sealed and no longer in a slot was replaced by a newer one, as the policy is."""
        saver = self._checkpointer._stager
        issued, sealed = saver.issued - self._before[0], saver.sealed - self._before[1]
        steps = [seal.state.step for seal in saver._slots.arena.sealed()]
        newest = sum(1 for step in steps if step > self._last - issued)
        assert max(steps) == self._last
        return {"counted": issued, "sealed": sealed, "replaced": sealed - newest}

    def held(self) -> dict[str, float]:
        """Slots are this rank's; the sidecar's processes are the pod's, whatever its state."""
        slots = sum(path.stat().st_size for path in self._home.glob("arena/*/slot-*"))
        return {"slots_mib": slots / (1 << 20), "sidecar_mib": round(self._sidecar.mebibytes(), 1)}

    def close(self) -> None:
        """End the sidecar and give the memory back."""
        self._checkpointer.close()
        self._sidecar.kill()
        shutil.rmtree(self._home)

    def _fresh(self) -> Checkpointer:
        settings = trainer_settings.read(self._sidecar.trainer(self._round))
        return Checkpointer(settings=settings, overlap=self._asked_overlap)

    def _wait(self, step: int) -> None:
        state = self._checkpointer._steps.state_of(step)
        assert SidecarClient(self._home).wait(state, "durable", timeout=FLUSH_SECONDS, patience=0.0)

    def _flush(self) -> None:
        reply = SidecarClient(self._home).request(
            names.PATH_FLUSH, Ack(), Ack, timeout=FLUSH_SECONDS
        )
        assert reply.done, reply.reason


if __name__ == "__main__":
    serve(Rover(overlap=sys.argv[1:] == ["overlap"]))

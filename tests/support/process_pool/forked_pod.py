# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A pod's sidecar and a light trainer as processes that are there in milliseconds: forked from one
that has loaded everything. The sidecar is the real one, whole.

Run as a script it forks on demand: a line on its standard input has what to be and the environment.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import mmap
import os
import pathlib
import select
import signal
import subprocess
import sys
import traceback

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.checkpoints import (
    ArenaReply,
    ArenaRequest,
    RestoreReply,
    RestoreRequest,
    SlotSealed,
)
from rover_kf.api.status import Ack
from rover_kf.checkpoint.arena.arena import Arena
from rover_kf.sidecar import __main__ as sidecar
from rover_kf.trainer.sidecar_client import SidecarClient
from tests.support.states import identities
from tests.support.states.synthetic_states import Form

ROOT = pathlib.Path(__file__).parents[3]
FORM = Form("sharded", world_size=2, all_rows=256)
"""Both ranks are in the pod."""
LOG = "trainer.log"
"""Below the pod's home: what the trainer has done, a line each."""
_WRITE_BYTES = 16 << 10
_SECONDS = 30.0


class Trainer:
    """All ranks of the pod in one process: restores, then saves step after step.

    Args:
        home: of the pod.
        round_: number of the round.
    """

    def __init__(self, home: pathlib.Path, round_: int) -> None:
        self._link, self._round = SidecarClient(home), round_
        self._arenas = [Arena(home / names.ARENA_DIR / str(r)) for r in range(FORM.world_size)]
        self._log = os.open(home / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(self, line: str) -> None:
        """Put down a line; it is there whatever becomes of this process."""
        os.write(self._log, f"{line}\n".encode())

    def run(self) -> None:
        """Train for ever."""
        step = self._restore()
        while True:
            step += 1
            for rank in range(FORM.world_size):
                self._save(rank, step)
            self.tell(f"sealed {step}")

    def _restore(self) -> int:
        ranks = range(FORM.world_size)
        with concurrent.futures.ThreadPoolExecutor(FORM.world_size) as threads:
            replies = list(threads.map(self._ask, ranks))
        ((step, source),) = {(reply.step, reply.source) for reply in replies}
        if step is not None:
            rounds = set()
            for rank, reply in enumerate(replies):
                data = pathlib.Path(reply.path).read_bytes()[: reply.snapshot_bytes]
                rounds.add(FORM.check(data, step, rank))
            assert len(rounds) == 1, "ranks of two courses"
        length = max(len(FORM.bytes_of(1, self._round, rank)) for rank in ranks)
        for rank in ranks:
            asked = ArenaRequest(rank, length + _WRITE_BYTES)
            self._link.request(
                names.PATH_ARENA, asked, ArenaReply, timeout=_SECONDS, patience=_SECONDS
            )
        self.tell(f"restored {step or 0} {source}")
        return step or 0

    def _ask(self, rank: int) -> RestoreReply:
        current = identities.round_id(self._round)
        asked = RestoreRequest(
            local_rank=rank,
            rank=rank,
            world_size=FORM.world_size,
            round=current,
            requested=FORM.wanted(rank),
        )
        return self._link.request(
            names.PATH_RESTORE, asked, RestoreReply, timeout=_SECONDS, patience=_SECONDS
        )

    def _save(self, rank: int, step: int) -> None:
        data = memoryview(FORM.bytes_of(step, self._round, rank))
        state = identities.state(step, self._round)
        facts = {"rank": rank, "world_size": FORM.world_size, "state": state, "replicated": False}
        before = self._arenas[rank].sealed()
        if len(before) > 1:
            self.tell(f"fills {rank} {before[0].state.step}")
        with self._arenas[rank].fill() as filling:
            if len(before) > 1 and filling.slot == before[0].slot:
                self.tell(f"over {before[0].state.step} {before[1].state.step}")
            with mmap.mmap(filling.descriptor, len(data)) as mapping:
                for begin in range(0, len(data), _WRITE_BYTES):
                    mapping[begin : begin + _WRITE_BYTES] = data[begin : begin + _WRITE_BYTES]
            filling.seal(length=len(data), pieces=True, **facts)
        told = SlotSealed(
            rank, round=state.round, slot=filling.slot, snapshot_bytes=len(data), pieces=True,
            **facts,
        )  # fmt: skip
        try:
            self._link.request(names.PATH_SEALED, told, Ack, timeout=_SECONDS)
        except errors.SidecarUnavailable:
            self.tell(f"alone {step}")  # It is dead or starts; training goes on.


def _train() -> int:
    trainer = Trainer(pathlib.Path(os.environ[names.ENV_HOME]), int(os.environ[names.ENV_ROUND]))
    try:
        trainer.run()
    except Exception:  # noqa: BLE001 - the test reads it
        trainer.tell(f"failed {traceback.format_exc()!r}")
    return 1


def _be(what: str) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    return sidecar.main() if what == "sidecar" else _train()


def main() -> None:
    """Fork for each line; answer with the process's number."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Whoever ends is gone at once.
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        what, environment = json.loads(line)
        child = os.fork()
        if child == 0:
            os.environ.update(environment)
            os._exit(_be(what))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """One that was forked, known by a descriptor that no other process can come to mean."""

    number: int
    descriptor: int

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends in so many seconds."""
        return bool(select.select([self.descriptor], [], [], seconds)[0])

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        if not self.ends_within(0):
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
            assert self.ends_within(_SECONDS), f"process {self.number} stays"
        os.close(self.descriptor)


class Forks:
    """The process that forks.

    Args:
        environment: of all processes.
        log: of all sidecars.
    """

    def __init__(self, environment: dict[str, str], log: pathlib.Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        assert self._read() == b"ready"

    def start(self, what: str, **environment: str) -> Process:
        """Fork a ``sidecar`` or a ``trainer``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, environment]).encode() + b"\n")
        self._process.stdin.flush()
        number = int(self._read())
        return Process(number, os.pidfd_open(number))

    def close(self) -> None:
        """End it; what was forked is ended by who asked for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_SECONDS)
        self._process.stdout.close()

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


if __name__ == "__main__":
    main()

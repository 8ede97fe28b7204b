# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""``torchrun --rdzv-backend=rover``: the coordinator's rounds for users of torchrun.

torchrun finds it by the entry point group ``torchrun.handlers``. Rounds, rank order and lost pods
work as with rover-run. But torchrun starts its own processes, a pod that ends takes the steps since
its last save with it, and --max-restarts is the budget.
"""

from __future__ import annotations

import atexit
import datetime as dt
import os
import pathlib
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import api as torch_api
from torch.distributed.elastic.utils.distributed import get_free_port

from rover_kf import errors
from rover_kf.api import names
from rover_kf.api.membership import (
    FinishRequest,
    Identity,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Member,
    Round,
)
from rover_kf.api.status import Ack
from rover_kf.launcher import drain_file, job_end
from rover_kf.launcher.event_loop import is_transient
from rover_kf.launcher.round_monitor import RoundMonitor
from rover_kf.launcher.sidecar_requests import LONGEST_POLL, SidecarConnector


def count_processes(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return the processes of this pod by torchrun's command line and environment."""
    nproc = environment.get("PET_NPROC_PER_NODE", "1")
    for position, word in enumerate(argv):
        option, _, value = word.replace("_", "-").partition("=")
        if option == "--nproc-per-node":
            nproc = value or argv[position + 1]
            break
    if nproc.isdecimal():
        return int(nproc)
    accelerators = torch.cuda.device_count() if nproc in ("auto", "gpu") else 0
    return accelerators or os.cpu_count() or 1


BACKEND = "rover"
SIDECAR_PATIENCE, LEAVE_PATIENCE = 60.0, 2.0
"""Seconds: for the sidecar to come up, for the good-bye."""
RETRY_SECONDS, IDLE_SECONDS = 0.2, 2.0
T = TypeVar("T")


class _RoundStore(PrefixStore):
    """A round's store, in which nobody waits after the round's end.

    torchrun's agents whose processes have succeeded wait here for the others for five minutes.
    """

    def __init__(self, prefix: str, store: TCPStore, has_ended: Callable[[], bool]) -> None:
        super().__init__(prefix, store)
        self._has_ended = has_ended

    def wait(self, keys: list[str], timeout: dt.timedelta | None = None) -> None:
        """Wait for keys.

        Raises:
            DistStoreError: they are not there in time, or the round has ended.
        """
        seconds = (timeout or self.timeout).total_seconds()  # type: ignore[attr-defined]
        until = time.monotonic() + seconds
        while not self.check(keys):
            if self._has_ended() or time.monotonic() > until:
                why = "the round has ended" if self._has_ended() else f"{seconds:.0f} s are over"
                raise dist.DistStoreError(f"{why}, and nobody has set {', '.join(keys)}")
            time.sleep(RETRY_SECONDS)


class RoverRendezvous(torch_api.RendezvousHandler):
    """A rendezvous handler of one torchrun agent, which starts so many processes."""

    def __init__(self, shared_dir: pathlib.Path, run_id: str, processes: int) -> None:
        self._shared_dir, self._run_id, self._processes = shared_dir, run_id, processes
        self._client = SidecarConnector(shared_dir)
        self._incarnation = uuid.uuid4().hex[:12]
        self._identity: Identity | None = None
        self._round: Round | None = None
        self._monitor: RoundMonitor | None = None
        self._resting = shared_dir / names.RUN_DIR / f"resting-{self._incarnation}"
        self._served: TCPStore | None = None
        self._closed = False
        # torchrun does not call shutdown() when it was told to end by a signal.
        atexit.register(self._leave, "torchrun ended")

    def get_backend(self) -> str:
        """Its name on the command line."""
        return BACKEND

    def get_run_id(self) -> str:
        """As torchrun was given it."""
        return self._run_id

    def next_rendezvous(self) -> torch_api.RendezvousInfo:
        """Join; returns when a round begins.

        Raises:
            SystemExit: the job has ended; with its exit code, as of ``shutdown``.
            RendezvousConnectionError: the pod has no sidecar.
        """
        self._stop_monitor()
        identity = self._get_identity()
        served = TCPStore(
            identity.address, 0, is_master=True, wait_for_workers=False, multi_tenant=True
        )
        current = self._join(identity, served)
        # Only now: others may have used the last one until their processes had ended.
        self._served, self._round = served, current
        # torchrun's processes inherit them.
        os.environ[names.ENV_ROUND] = str(current.number)
        os.environ[names.ENV_GENERATION] = str(current.generation)
        os.environ[names.ENV_LAUNCHER] = str(os.getpid())
        drain_file.write(self._shared_dir, 0)
        shutil.rmtree(self._resting, ignore_errors=True)
        self._resting.mkdir(parents=True)
        os.environ[names.ENV_RESTING] = str(self._resting)
        rank = [member.pod for member in current.members].index(identity.pod)
        store = self._store_of(current, rank)
        first = _master_address(store, rank, identity.address)
        self._monitor = RoundMonitor(
            self._client,
            current,
            self._member(identity),
            shared_dir=self._shared_dir,
            resting=self._resting,
        ).start()
        return torch_api.RendezvousInfo(store, rank, len(current.members), first)

    def num_nodes_waiting(self) -> int:
        """More than none as soon as the round is to end: torchrun restarts its processes then."""
        return int(self._monitor is not None and self._monitor.is_over)

    def is_closed(self) -> bool:
        """Whether the job has ended."""
        return self._closed or bool(self._monitor and self._monitor.closed)

    def set_closed(self) -> None:
        """Leave; the coordinator alone closes a job."""
        self._leave("torchrun closed its rendezvous")

    def shutdown(self) -> bool:
        """The agent ends: with the others if its processes succeeded, else without them.

        Raises:
            SystemExit: the job's end is not 0, as rover-run's (job_end.py). torchrun logs any other
                exception and ends with 0.
        """
        self._stop_monitor()
        # torchrun calls this in both cases, and raises what failed through it.
        failed = sys.exc_info()[0] is not None
        code = names.EXIT_DONE
        try:
            if not failed and self._round is not None and not self.is_closed():
                code = self._finish(self._round)
        finally:
            self._leave("its processes failed" if failed else "the job has ended")
        if code:
            raise SystemExit(code)
        return True

    def _get_identity(self) -> Identity:
        if self._identity is None:
            try:
                self._identity = self._request(names.PATH_SELF, None, Identity, SIDECAR_PATIENCE)
            except errors.RoverError as cause:
                message = f"--rdzv-backend={BACKEND} needs the pod's sidecar: {cause}"
                raise torch_api.RendezvousConnectionError(message) from cause
        return self._identity

    def _member(self, identity: Identity) -> Member:
        pod, place = identity.pod, identity.node_rank
        return Member(pod, self._incarnation, place, self._processes, identity.node)

    def _join(self, identity: Identity, served: TCPStore) -> Round:
        last = self._round.number if self._round else 0
        request = JoinRequest(self._member(identity), identity.address, served.port, last)
        while True:
            reply = self._request(names.PATH_JOIN, request, JoinReply)
            if reply.action == "start" and reply.round is not None:
                return reply.round
            if reply.action == "closed":
                self._closed = True
                raise SystemExit(self._exit_code(reply))
            if reply.action == "drained":  # there is no place for it, which may change
                time.sleep(IDLE_SECONDS)

    def _store_of(self, current: Round, rank: int) -> PrefixStore:
        store = self._served
        if rank or store is None:
            store = TCPStore(current.store_host, current.store_port, is_master=False)
        return _RoundStore(f"rover/{current.number}", store, self._has_round_ended)

    def _has_round_ended(self) -> bool:
        return self._monitor is not None and self._monitor.has_ended

    def _finish(self, current: Round) -> int:
        """Wait for the other pods of the round; the exit code that follows."""
        request = FinishRequest(
            self._get_identity().pod, self._incarnation, current.number, world=current
        )
        try:
            while True:
                reply = self._request(names.PATH_FINISH, request, JoinReply)
                if reply.action == "closed":
                    return self._exit_code(reply)
                if reply.action == "retry":
                    # A torchrun whose processes have succeeded starts none again.
                    _log_line("the round goes on without this container; another has to join")
                    return names.EXIT_RETRY
        except errors.RoverError as error:
            _log_line(f"cannot go on, another container has to try: {error}")
            return names.EXIT_RETRY

    def _exit_code(self, reply: JoinReply) -> int:
        patience = job_end.FLUSH_PATIENCE
        return job_end.exit_code(
            reply,
            lambda: self._request(names.PATH_FLUSH, {}, Ack, 30.0, timeout=patience),
            time.sleep,
            shared_dir=self._shared_dir,
            log_line=_log_line,
        )

    def _leave(self, reason: str) -> None:
        self._stop_monitor()
        atexit.unregister(self._leave)
        if self._identity is None or self._round is None:
            return
        self._round = None
        request = LeaveRequest(self._identity.pod, self._incarnation, reason)
        try:
            self._request(names.PATH_LEAVE, request, Ack, LEAVE_PATIENCE)
        except errors.RoverError as error:
            _log_line(f"could not say good-bye, the others will notice: {error}")

    def _stop_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.stop()
            self._monitor = None

    def _request(
        self,
        path: str,
        message: object,
        reply: type[T],
        patience: float = 1e9,
        *,
        timeout: float = LONGEST_POLL,
    ) -> T:
        until = time.monotonic() + patience
        while True:
            try:
                return self._client.request(path, message, reply, timeout=timeout)
            except errors.RoverError as error:
                if not is_transient(error) or time.monotonic() > until:
                    raise
            time.sleep(RETRY_SECONDS)


def creator() -> Callable[[torch_api.RendezvousParameters], RoverRendezvous]:
    """What torchrun registers under the entry point's name."""
    return create


def create(
    parameters: torch_api.RendezvousParameters, environment: Mapping[str, str] | None = None
) -> RoverRendezvous:
    """Create a handler for one agent.

    Endpoint, nodes and configuration of the command line have no effect.

    Raises:
        InputError: this is no pod of rover-kf.
    """
    known = os.environ if environment is None else environment
    home = known.get(names.ENV_HOME)
    if not home:
        message = (
            f"--rdzv-backend={BACKEND} needs a pod that rover-kf was put into, and "
            f"{names.ENV_HOME} is not set; use c10d elsewhere"
        )
        raise errors.InputError(message)
    processes = count_processes(sys.argv[1:], known)
    return RoverRendezvous(pathlib.Path(home), parameters.run_id, processes)


def _master_address(store: PrefixStore, rank: int, address: str) -> torch_api.RendezvousStoreInfo:
    """Where the training processes' own store will be: at the first member, on a free port."""
    if rank == 0:
        port = get_free_port()  # type: ignore[no-untyped-call]
        store.set("meet", f"{address} {port}")
    host, port = store.get("meet").decode().split()
    return torch_api.RendezvousStoreInfo(host, int(port))


def _log_line(message: str) -> None:
    sys.stderr.write(f"rover-kf: {message}\n")
    sys.stderr.flush()

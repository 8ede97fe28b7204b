# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""One pod, as a kubelet runs it: a thread that starts, restarts and ends its containers.

Init containers in order, native sidecars beside them, then the containers; restarts in place by
the pod's restartPolicy with a back-off, the volumes staying; on deletion, or when it is told to
end, SIGTERM to the containers, the grace period, SIGKILL, then the sidecars in reverse order.
Liveness and readiness probes, limits and security contexts are the cluster's business and have no
effect here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rover_kf.api.jobs import ContainerStatus as ContainerView
from rover_kf.api.jobs import Pod as PodView
from rover_kf.cluster.local.container import LocalContainer
from rover_kf.cluster.local.pod_spec import LocalPodSpec
from rover_kf.cluster.local.settings import Timing

SIDECAR_GRACE = 2.0
"""Seconds a native sidecar has at least, however long the containers took to end."""


class LocalPod:
    """A running pod; its thread calls ``on_change`` after each change of its view."""

    def __init__(self, spec: LocalPodSpec, timing: Timing, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self._timing, self._on_change = timing, on_change
        delays = (timing.first_restart, timing.longest_restart)
        self._init = [LocalContainer(item, delays) for item in spec.init]
        self._containers = [LocalContainer(item, delays) for item in spec.containers]
        self._deleting, self._ending = False, threading.Event()
        self._grace = spec.grace
        self.phase = "Pending"
        """Pending, Running, Succeeded or Failed."""
        self.ended = False
        """Nothing of it runs any more and its volumes are given back, deleted or not."""
        self._thread = threading.Thread(target=self._run, name=spec.name, daemon=True)
        self._last_view: PodView | None = None

    @property
    def gone(self) -> bool:
        """Deleted and ended: its name is free."""
        return self.ended and self._deleting

    def pids(self, container: str) -> tuple[int, ...]:
        """Processes of a container now, its command first; empty if it does not run."""
        every = (*self._init, *self._containers)
        return next((c.pids for c in every if c.spec.name == container), ())

    def view(self) -> PodView:
        """As the API server would show it."""
        return PodView(
            name=self.spec.name,
            uid=self.spec.uid,
            replica_type=self.spec.replica_type,
            replica_index=self.spec.index,
            phase=self.phase,
            address=self.spec.address,
            node="localhost",
            deleting=self._deleting,
            containers=tuple(
                ContainerView(c.spec.name, c.running, c.restarts, c.exit_code, c.reason)
                for c in (*self._init, *self._containers)
            ),
        )

    def start(self) -> None:
        """Start it."""
        self._thread.start()

    def delete(self, grace: float | None = None) -> None:
        """End it; returns at once. ``gone`` says when it has ended."""
        if grace is not None:
            self._grace = min(grace, self._grace)
        self._deleting = True
        self._ending.set()

    def end(self) -> None:
        """End what runs and give its volumes back, as a deletion does; the pod and its logs stay.

        Returns at once; ``ended`` says when it is done.
        """
        self._ending.set()

    def join(self) -> None:
        """Wait until its thread has ended, after ``delete`` or ``end``."""
        self._thread.join()

    # -- the pod's thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.spec.volumes.create()
            if self._run_init():
                for container in self._containers:
                    container.start()
                self.phase = "Running"
                self._watch()
        finally:
            self._end()
            self.ended = True
            self._on_change()

    def _run_init(self) -> bool:
        """Whether all init containers are through and the containers may start."""
        for container in self._init:
            container.start()
            self._notify()
            if container.spec.native:
                while not container.wait_started(self._timing.tick):
                    self._keep_sidecars()
                    if self._pause():
                        return False
                continue
            while not container.finished:
                self._look_after(container, init=True)
                self._keep_sidecars()
                if self._pause():
                    return False
            if container.exit_code != 0:
                return False
        return True

    def _watch(self) -> None:
        """Until every container has ended for good, or the pod is to end."""
        while not all(container.finished for container in self._containers):
            for container in self._containers:
                self._look_after(container)
            self._keep_sidecars()
            if self._pause():
                return

    def _look_after(self, container: LocalContainer, *, init: bool = False) -> None:
        """Decide about a container that has ended, and start it again when that is due."""
        code, policy = container.poll(), self.spec.restart_policy
        if code is not None:
            again = code != 0 if policy == "OnFailure" or init else True
            if container.spec.native or (policy != "Never" and again):
                container.schedule_restart(time.monotonic())
            else:
                container.finished = True
        container.restart_if_due(time.monotonic())

    def _keep_sidecars(self) -> None:
        for container in self._init:
            if container.spec.native:
                self._look_after(container)

    def _pause(self) -> bool:
        """Tell what changed, wait one tick; whether the pod is to end."""
        self._notify()
        return self._ending.wait(self._timing.tick)

    def _notify(self) -> None:
        view = self.view()
        if view != self._last_view:
            self._last_view = view
            self._on_change()

    def _end(self) -> None:
        """End what runs, in the kubelet's order, then give the volumes back."""
        began = time.monotonic()
        normal = [c for c in self._init if not c.spec.native] + self._containers
        for container in normal:
            container.terminate()
        while any(container.running for container in normal):
            if time.monotonic() >= began + self._grace:  # which a deletion may shorten meanwhile
                break
            time.sleep(self._timing.tick)
            for container in normal:
                container.poll()
        for container in normal:
            container.stop(0.0)
        deadline = began + self._grace
        for container in reversed([c for c in self._init if c.spec.native]):
            container.stop(max(deadline - time.monotonic(), SIDECAR_GRACE))
        self.spec.volumes.remove()
        succeeded = all(container.exit_code == 0 for container in normal)
        self.phase = "Succeeded" if succeeded else "Failed"
        self._notify()

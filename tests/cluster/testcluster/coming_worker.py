# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A worker of the coming-workers sample: what it takes, and ways to end it."""

from __future__ import annotations

import signal

from testcluster.faults import ProcessFaults
from testcluster.jobs import RunningJob
from tests.support.waiting import eventually

_PATIENCE = 300.0
"""Seconds: processes load TensorFlow at once, on two cores."""


class ComingWorker:
    """One that takes records.

    Args:
        job: that it is of.
        faults: ways to end its processes.
        index: of it.
    """

    def __init__(self, job: RunningJob, faults: ProcessFaults, index: int) -> None:
        self.pod, self._job, self._faults = f"{job.name}-worker-{index}", job, faults
        self._rank = str(index + 1)  # in the ledger, of which 0 is the chief's

    def uid(self) -> str:
        """Of its pod; empty while there is none."""
        found = self._job.pods().get(self.pod)
        return found["metadata"]["uid"] if found else ""

    def batches(self) -> int:
        """That programs of this pod have taken."""
        return self._job.log(self.pod).count("took ")

    def takes(self, more: int) -> None:
        """Wait until it has taken so many more."""
        before = self.batches()
        eventually(
            lambda: self.batches() >= before + more,
            within=_PATIENCE, every=0.5, what=f"{more} more batches of {self.pod}",
        )  # fmt: skip

    def killed(self, *, container: bool = False) -> int:
        """Its program is ended, or its whole container; records that it was lent.

        It stands still first, so that they are those that the ledger has told when it is killed.
        """
        where = (self._job.namespace, self.pod)
        (program,) = self._faults.kill(*where, container="tensorflow", number=signal.SIGSTOP)
        lent = self.lent()
        first = self._faults.processes(*where, container="tensorflow")[0]
        self._faults.reach.send(signal.SIGKILL, first if container else program)
        return lent

    def lent(self) -> int:
        """Records that it holds, of a worker that stands still."""
        (lent,) = eventually(self._settled, within=20, every=0.2, what="what it was lent")
        return lent

    def _settled(self) -> tuple[int, ...]:
        """As the ledger has it, once two looks are alike: what was on its way has arrived."""
        looks = [self._outstanding(), self._outstanding()]
        return (looks[0],) if looks[0] == looks[1] else ()

    def _outstanding(self) -> int:
        (data,) = self._job.status()["data"]
        rank = f"{self._rank}/"
        known = [one for one in data["workers"] if one["worker"].startswith(rank)]
        return sum(one["outstanding"] for one in known)

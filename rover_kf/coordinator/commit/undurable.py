# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What never becomes durable, or has not for long.

Of the former no wait brings a checkpoint, and no restart another one.

A job whose processes have all ended with 0 has still failed where its newest state is of that kind:
its pods would wait, end, and train again for the same end.
"""

from __future__ import annotations

from collections.abc import Mapping

from rover_kf.api.checkpoints import PersistAborted, PodEnded
from rover_kf.api.membership import Round
from rover_kf.api.states import State
from rover_kf.checkpoint import rank_ranges
from rover_kf.coordinator.commit.committer import Committer
from rover_kf.coordinator.commit.sealed_steps import SealedSteps

_OVERDUE_SECONDS, _OVERDUE_PACES = 60.0, 3
"""Without a commit, and at least so many times the pace of persists."""


class OverduePersist:
    """A watch on attempts to persist that are all given up; one per coordinator.

    Args:
        persist_seconds: least time between two persists.
    """

    def __init__(self, persist_seconds: float) -> None:
        self._seconds = max(_OVERDUE_SECONDS, _OVERDUE_PACES * persist_seconds)
        self._attempts, self._since, self._reported = 0, 0.0, False

    def on_committed(self) -> None:
        """A state is durable from now on."""
        self._attempts, self._reported = 0, False

    def on_aborted(self, aborted: PersistAborted, now: float) -> str:
        """Take an attempt that storage has no part in; return the warning that is due.

        There is one until the next commit.

        Args:
            aborted: by a rank.
            now: monotonic seconds.
        """
        self._since = self._since if self._attempts else now
        self._attempts += 1
        seconds = now - self._since
        if self._reported or seconds < self._seconds:
            return ""
        self._reported = True
        return (
            f"no step has become durable for {seconds:.0f} s: {self._attempts} attempts were given "
            f"up, the last one of {aborted.state} by rank {aborted.rank}: {aborted.reason}. If "
            "saves are that frequent, save less often (checkpoint.every)"
        )


class UndurableState:
    """One a coordinator.

    Args:
        sealed_steps: of all ranks.
        committer: of their reports.
    """

    def __init__(self, sealed_steps: SealedSteps, committer: Committer) -> None:
        self._sealed_steps, self._committer = sealed_steps, committer
        self._rank_locations: tuple[tuple[str, int], ...] = ()
        """Of the running round's ranks; none of a round whose begin was not seen."""
        self._ended_pods: dict[str, Mapping[str, State]] = {}
        self._ended = False
        self.verdict = ""
        """Why the job has failed at its end; empty: it has not, or trains."""

    def on_round_started(self, current: Round | None) -> None:
        """A round runs.

        Args:
            current: None: this coordinator has not seen its begin. Whoever saved may have told its
                predecessor, and have been lost since: then a restart helps.
        """
        self._rank_locations = current.rank_locations() if current else ()
        self._ended_pods.clear()

    def on_job_ended(self) -> None:
        """No process trains any more."""
        self._ended = True

    def pod_ended(self, report: PodEnded) -> None:
        """A pod's processes have ended."""
        self._ended_pods[report.pod] = report.states

    def reason(self, state: State) -> str:
        """Why that state never becomes durable; empty: it may yet.

        Args:
            state: that somebody waits for.
        """
        why = (
            self._committer.mismatch
            if self._committer.is_mismatched(state)
            else self._missing_reason(state)
        )
        if self._ended:
            self.verdict = self.verdict or why
        return why

    def _missing_reason(self, state: State) -> str:
        lacking = self._sealed_steps.missing_ranks(state) if self._ended else ()
        if not lacking or not all(self._lacks(rank, state) for rank in lacking):
            return ""
        return (
            f"step {state.step} does not come to storage: all processes have ended, and ranks "
            f"{rank_ranges.format_ranks(lacking)} have not saved it; every rank has to"
        )

    def _lacks(self, rank: int, state: State) -> bool:
        """Whether its pod has told so: the news of a save may be behind."""
        if rank >= len(self._rank_locations):
            return False
        pod, local_rank = self._rank_locations[rank]
        if pod not in self._ended_pods:
            return False
        newest = self._ended_pods[pod].get(str(local_rank))
        return newest is None or newest < state

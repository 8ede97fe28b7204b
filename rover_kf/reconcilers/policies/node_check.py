# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A check of a job's nodes, judged anew beside what the checks of other jobs showed; pure.

The coordinator knows its own job alone. Of two nodes it cannot tell which one slows the other down;
a node that had a bad pair in another job, too, is the one.
"""

from __future__ import annotations

from collections.abc import Iterator

from rover_kf.api import names
from rover_kf.api.faults.faulty_nodes import FaultyNode
from rover_kf.api.faults.node_check_messages import FAULTY, SLOW, NodeVerdict
from rover_kf.api.jobs import Event
from rover_kf.elastic.node_check.verdict import CheckEvidence, pod_verdicts
from rover_kf.reconcilers.plan import Observed

KIND = "preflight"
"""Of an unfit node."""


def collect_events(observed: Observed, now: float) -> Iterator[tuple[str, Event]]:
    """Events about nodes that only the history shows to be bad, each with its key."""
    for one, at in _new_verdicts(observed):
        message = f"{one.pod} on {one.node} is {one.verdict}, as other jobs show: {one.reason}"
        event = Event(names.EVENT_NODE_CHECK_FAILED, message, warning=True, at=now)
        yield f"unfit:{one.pod}:{at:.0f}", event


def faulty_nodes(observed: Observed) -> tuple[FaultyNode, ...]:
    """Nodes that the job shall leave for it, by its policy."""
    if not observed.policy.excludes_unfit:
        return ()
    return tuple(
        FaultyNode(one.node, one.pod, KIND, f"{one.verdict}: {one.reason}", at)
        for one, at in _new_verdicts(observed)
        if one.node
    )


def _new_verdicts(observed: Observed) -> Iterator[tuple[NodeVerdict, float]]:
    check = observed.status.preflight if observed.status else None
    if check is None:
        return
    known = {one.pod for one in check.verdicts if one.verdict in (SLOW, FAULTY)}
    for one in pod_verdicts(CheckEvidence(check.pods, check.pairs, observed.fleet)):
        if one.verdict in (SLOW, FAULTY) and one.pod not in known:
            yield one, check.at

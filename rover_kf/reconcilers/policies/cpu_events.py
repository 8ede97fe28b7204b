# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What is told of pods that their CPU limit holds back, or that have more than they use; pure."""

from __future__ import annotations

from collections.abc import Mapping

from rover_kf.api import names
from rover_kf.api.faults.limit_raises import CpuLimitRaises, CpuUse
from rover_kf.api.jobs import Event
from rover_kf.elastic.resources.cpu_limit import STARVED
from rover_kf.injection import quantities
from rover_kf.injection.adapters import Replica
from rover_kf.reconcilers.plan import Observed
from rover_kf.scaling.policy import AUTO

SERVER = "ps"
UNEVEN = 2.0
"""So many times as busy as any other PS are those on which the work lies unevenly."""


def denial_reason(observed: Observed) -> str:
    """Why the policy lets nothing be raised; empty where it does."""
    if observed.policy.mode == AUTO and not observed.policy.max_cpu:
        return f"annotation {names.PREFIX}cpu.max is not there: set the most that it may be, as 8"
    return "" if observed.policy.mode == AUTO else "advice"


def make_raised_event(
    replica: Replica,
    limits: tuple[int, int],
    state: CpuLimitRaises,
    more: str,
    *,
    observed: Observed,
    now: float,
) -> Event:
    """Of a limit that is raised now.

    Args:
        replica: the type.
        limits: before and after, in thousandths of a core.
        state: with why, and the steps a second before.
        more: that is to be told.
        observed: the job.
        now: Unix seconds.
    """
    old, new = map(quantities.format_millicores, limits)
    most = quantities.format_millicores(observed.policy.max_cpu)
    message = (
        f"CPU limit of {replica.key} replicas {old} -> {new}, {_how_raised(observed)}: "
        f"{state.reason}, at {state.rate:.3g} steps/s (cpu.max is {most}){more}"
    )
    return Event(names.EVENT_CPU_RAISED, message, at=now)


def make_not_raised_event(
    replica: Replica,
    limits: tuple[int, int | None],
    refused: str,
    short: str,
    more: str,
    *,
    observed: Observed,
    now: float,
) -> Event:
    """Of a limit that stays as it is, though pods are short."""
    had, wanted = limits
    old = quantities.format_millicores(had)
    if observed.policy.mode != AUTO and wanted is not None:
        new = quantities.format_millicores(wanted)
        message = (
            f"{short}: steps wait for it. scaling.mode auto with cpu.max would give {replica.key} "
            f"replicas {new} in place of {old}{more}"
        )
        server = replica.kind == SERVER
        reason = names.EVENT_SERVER_CPU_THROTTLED if server else names.EVENT_WORKER_CPU_THROTTLED
        return Event(reason, message, warning=True, at=now)
    message = f"CPU limit of {replica.key} replicas stays {old}, though {short}: {refused}{more}"
    return Event(names.EVENT_CPU_NOT_RAISED, message, warning=True, at=now)


def describe_throttling(replica: Replica, short: Mapping[str, CpuUse], waits: float) -> str:
    """What is seen of the pods that are short, in a sentence.

    Args:
        replica: their type.
        short: by pod; at least one.
        waits: share of a step that is spent waiting for data.
    """
    worst, use = max(short.items(), key=lambda item: item[1].throttled)
    among = f" ({len(short)} of {replica.replicas} {replica.key})" if replica.replicas > 1 else ""
    starves = f", and {waits:.0%} of a step waits for data" if waits > STARVED else ""
    return (
        f"{worst}{among} had used up its {quantities.format_millicores(round(use.limit * 1000))} "
        f"in {use.throttled:.0%} of the last {use.seconds:.0f} s{starves}"
    )


def describe_imbalance(
    replica: Replica, short: Mapping[str, CpuUse], uses: Mapping[str, CpuUse]
) -> str:
    """What is told where the work lies on some parameter servers alone; empty where it does not.

    Args:
        replica: their type.
        short: by pod, those that are held back.
        uses: of all of them that told.
    """
    others = [use.cores for pod, use in uses.items() if pod not in short]
    if replica.kind != SERVER or not others:
        return ""
    least = min(use.cores for use in short.values())
    if max(others) * UNEVEN > least:
        return ""
    busy = quantities.format_millicores(round(1000 * max(others)))
    return (
        f". The work lies unevenly: no other PS kept more than {busy} busy; a partitioner of the "
        "strategy (tf.distribute.experimental.partitioners) spreads large variables over all PS"
    )


def make_overrequest_event(
    replica: Replica, cores: tuple[float, float, float], minutes: float, now: float
) -> Event:
    """Of cores that are asked for and hardly used.

    Args:
        replica: the type.
        cores: asked for, the most that a pod kept busy, and what would do.
        minutes: of training in which that was seen.
        now: Unix seconds.
    """
    asked, busy, enough = (quantities.format_millicores(round(1000 * one)) for one in cores)
    message = (
        f"{replica.key} replicas ask for {asked} of CPU each, and none kept more than {busy} busy "
        f"in {minutes:.0f} min: {enough} would do. What a job has is not lowered while it runs; "
        "set it in the manifest (`rover-kf recommend` reckons with it, too)"
    )
    return Event(names.EVENT_CPU_OVER_REQUESTED, message, at=now)


def _how_raised(observed: Observed) -> str:
    if observed.resizes:
        return "in place"
    if not observed.replaceable:
        return (
            "for pods that are made anew: this Kubernetes cannot resize a pod that runs, and a "
            "TFJob may fail with a pod that is deleted; suspend and resume the job to give it to "
            "all; with its state on storage and enough left to do that is done"
        )
    return (
        "for pods that are made anew: this Kubernetes cannot resize a pod that runs; suspend and "
        "resume the job to give it to all"
    )

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What scaling makes of a job, whatever there is room for: an observation and its decision."""

from __future__ import annotations

import dataclasses

from rover_kf.api.decisions import ScaleDecision
from rover_kf.scaling.ps_decision_input import PsObservation
from rover_kf.scaling.scaling_state import JobObservation, ScalingState


@dataclasses.dataclass(frozen=True, slots=True)
class ScalingProposal:
    """A job as scaling sees it, and where it would go."""

    current: JobObservation
    """With the model of its throughput, which is fitted when somebody asks for it."""
    decision: ScaleDecision | None = None
    """None while a change that is written down has still to be made."""
    state: ScalingState = dataclasses.field(default_factory=ScalingState)
    """To be kept with the decision."""


@dataclasses.dataclass(frozen=True, slots=True)
class PsProposal:
    """The same of a job with parameter servers."""

    current: PsObservation
    decision: ScaleDecision
    state: ScalingState
    """To be kept with the decision."""

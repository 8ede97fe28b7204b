# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What people and pipelines call: submit, watch, scale, report; over any cluster."""

from __future__ import annotations

from rover_kf.client.job_progress import Progress
from rover_kf.client.rover import RoverClient
from rover_kf.client.script_jobs import DryRun
from rover_kf.client.views import JobHistory
from rover_kf.recommender.constraints import Constraints
from rover_kf.recommender.price import PriceTable

__all__ = ["Constraints", "DryRun", "JobHistory", "PriceTable", "Progress", "RoverClient"]

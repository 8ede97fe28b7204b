# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Policies of the planner: each extends the plan of a job by one concern; pure."""

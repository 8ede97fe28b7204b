# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods train together, when a round starts or ends, what a failure means.

All are pure decisions: they return effects, which the coordinator executes, and take ``now``.
"""

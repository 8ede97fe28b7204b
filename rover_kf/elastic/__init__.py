# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods train together, when a round starts or ends, what a failure means: pure decisions.

The coordinator role feeds :mod:`rendezvous` and carries out the effects it returns; the launcher
asks :mod:`failures` what ended a process. No input or output, no clock: ``now`` is an argument
everywhere.
"""

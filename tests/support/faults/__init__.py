# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Faults that tests inject: slow, frozen and lost disks, cut connections, paused processes."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Slots: the pod's snapshots in memory, their verification, and how peers read them."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The deployable: one process a cluster, webhook and reconcilers wired to kopf."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Commits of checkpoints: which step is persisted next, and which step is durable."""

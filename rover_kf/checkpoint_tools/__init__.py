# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on storage looked at, compared, exported and removed by people; no cluster needed."""

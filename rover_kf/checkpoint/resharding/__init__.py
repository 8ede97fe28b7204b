# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Resharding: which stored bytes a rank of another world needs."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes for a job before it starts, each with its interval and its reason."""

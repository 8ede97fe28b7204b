# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Kinds of jobs: one folder each, and the registry that lists them."""

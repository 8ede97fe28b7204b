# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: a script for each, and the packages that the scripts are made of."""

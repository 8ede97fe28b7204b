# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The systems that benchmarks/checkpoint.py compares, and their sessions."""

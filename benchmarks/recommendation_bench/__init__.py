# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of benchmarks/recommendation.py: throughput, memory and fleets."""

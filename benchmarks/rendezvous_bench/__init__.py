# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of benchmarks/rendezvous.py: simulated launchers, a served round, a plot."""

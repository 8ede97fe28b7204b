# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of benchmarks/sharding.py: loader overhead, ledgers, leases and resumes."""

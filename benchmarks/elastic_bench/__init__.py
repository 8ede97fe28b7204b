# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of benchmarks/elastic.py: jobs, actions and their outcomes."""

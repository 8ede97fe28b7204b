# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of benchmarks/scaling.py: jobs alone, the model's errors, intervals of savings."""

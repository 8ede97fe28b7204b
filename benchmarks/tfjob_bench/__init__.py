# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Parts of benchmarks/tfjob.py: lost parts and an overloaded parameter server."""

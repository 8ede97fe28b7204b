# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many replicas pay: a throughput model and the decision over it; values in, values out.

``now`` is Unix seconds; windows are in the order of time.
"""

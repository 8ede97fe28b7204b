# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""How many replicas pay: a throughput model and the decision over it; values in, values out."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""State dictionaries flattened into tensors and plain values, and rebuilt."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Data loaders and data sets that survive restarts and changes of size."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Training scripts that tests run in processes, and the data sets that they read."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What runs have shown: kept in one SQL table, written while they run."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Values that cross a process border, and every wire name; standard library only."""

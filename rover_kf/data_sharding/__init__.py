# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Which sample stands where, and what of it is used; pure, standard library only."""

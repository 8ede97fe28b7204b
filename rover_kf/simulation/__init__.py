# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs and clusters by measured tables and a virtual clock; what decides is production's."""

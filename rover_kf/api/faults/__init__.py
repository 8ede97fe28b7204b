# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Values about faults and limits: between sidecars, coordinator and controller."""

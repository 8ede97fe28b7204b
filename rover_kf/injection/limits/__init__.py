# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer container's memory and CPU limits in a manifest."""

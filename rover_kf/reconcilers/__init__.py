# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The loop over labelled jobs: observe, plan, apply; one file a concern.

``now`` is Unix seconds in all of them.
"""

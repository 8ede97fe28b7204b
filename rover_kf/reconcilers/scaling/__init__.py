# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The size of a job: proposed, fitted to the available capacity, changed step by step; pure."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Admission: what a job becomes when it is created or applied again, and how that is served."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The seam to where jobs run: one protocol, two implementations, one conformance suite."""

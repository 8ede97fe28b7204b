# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Restores: which step every rank restores, and where its bytes come from."""

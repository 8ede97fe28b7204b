# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Persisting slots: the persister and the worker processes that write to storage."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A job's coordinator: rendezvous, failures, throughput, shared data; runs in the first pod."""

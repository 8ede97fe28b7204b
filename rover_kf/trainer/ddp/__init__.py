# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel's gradient buckets, kept from one process to the next."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What a job's steps say: windows of throughput, the account of its seconds, and their export."""

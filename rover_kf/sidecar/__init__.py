# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The process beside each trainer: owns the arena, persists it, serves peers and the local socket.

In the job's first pod it is the coordinator too. It runs in our own image, never in the user's.
"""

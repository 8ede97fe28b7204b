# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Pods without Kubernetes: sidecars, launchers and trainers, as processes or in this one."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The check of a job's nodes before they train (docs/preflight.md).

Pods compute alone and reduce in pairs. A pair that fails or is slow shows that one of two is bad;
further pairs show which.
"""

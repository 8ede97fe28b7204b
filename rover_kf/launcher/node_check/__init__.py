# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The launcher's part in the check of nodes: the order of a pod's share, and its measurement."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster on Kubernetes: client, conversion and informer."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Kubeflow Pipelines components: thin bodies over RoverClient, and pipelines joining them."""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that tests run: their manifests, processes, resources and records."""

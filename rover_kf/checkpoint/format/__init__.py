# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The snapshot format: header, tensors, checksums and manifest."""

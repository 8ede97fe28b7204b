# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Storage back ends of checkpoints: directories and object stores."""

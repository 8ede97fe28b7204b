# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""State as bytes: slots in memory, files on storage, when they are whole, which one to restore."""

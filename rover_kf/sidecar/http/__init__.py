# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP between sidecars: server, client, authentication and long polls."""

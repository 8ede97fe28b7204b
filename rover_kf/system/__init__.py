# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""What the operating system offers: /proc, mounted files, clocks, TLS and sockets."""

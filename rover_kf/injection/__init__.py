# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Manifest to manifest: a plain job in, the same job with sidecar, arena and launcher out.

Pure and idempotent; the webhook, the CLI, the client and the components call the one function
``inject.inject``. One module for each thing that is added; each can also take its own away again.
"""

# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A run's record as a page for people: one HTML file, or a few lines of Markdown."""

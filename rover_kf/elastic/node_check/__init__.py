# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""The check of a job's nodes before they train: who is paired, and what it tells; pure.

Pods compute alone and reduce in pairs. A pair that fails or is slow tells that one of its two is
bad; which one, further pairs tell. docs/preflight.md is the page for people.
"""

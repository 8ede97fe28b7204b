# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A history by its address: SQL by a SQLAlchemy URL, a controller's by http or https."""

from __future__ import annotations

from collections.abc import Collection

from rover_kf.history.remote import RemoteHistory
from rover_kf.history.store import SqlHistory


def open_history(url: str, *, shared: Collection[str] = ()) -> SqlHistory | RemoteHistory:
    """The history at an address; nothing is opened before it is used.

    Args:
        url: ``sqlite:///…``, ``postgresql+psycopg://…``, or a controller's ``https://…``.
        shared: see SqlHistory; a controller decides for itself.
    """
    if url.startswith(("http://", "https://")):
        return RemoteHistory(url)
    return SqlHistory(url, shared=shared)

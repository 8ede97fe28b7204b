# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""An error on its way over HTTP: a JSON body with its class and message, and the error again.

Sidecars write them; sidecars, launchers and trainers read them. Standard library only.
"""

from __future__ import annotations

import json

from rover_kf import errors

_SHOWN_BYTES = 500


def encode_error(kind: str, message: str) -> bytes:
    """Return the body of an answer with an error: its class's name and its message."""
    return json.dumps({"error": kind, "message": message}).encode()


def decode_error(
    status: int, body: bytes, *, unreadable: type[errors.RoverError]
) -> errors.RoverError:
    """Return the error that an answer stands for, of its class if there is one.

    ``unreadable`` is the class of an answer from another program.
    """
    try:
        found = json.loads(body)
        kind, message = str(found["error"]), str(found["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return unreadable(f"status {status}: {body[:_SHOWN_BYTES]!r}")
    cls = getattr(errors, kind, None)
    if not (isinstance(cls, type) and issubclass(cls, errors.RoverError)):
        return errors.RoverError(f"{kind}: {message}")
    # Some classes build their message from facts that are in this one already.
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    return error

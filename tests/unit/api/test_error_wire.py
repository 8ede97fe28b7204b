# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Errors over HTTP: the same class and message arrive; what is none of ours is told as such."""

from __future__ import annotations

import pytest

from rover_kf import errors
from rover_kf.api import error_wire

CLASSES = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, errors.RoverError)
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_arrives_as_it_was(cls):
    """Class and message survive, also of classes that build their message from facts."""
    body = error_wire.encode_error(cls.__name__, "the disk is full: /x")
    found = error_wire.decode_error(507, body, unreadable=errors.SidecarUnavailable)
    assert type(found) is cls
    assert str(found) == "the disk is full: /x"


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>Bad Gateway</html>", b"[]", b'{"error": "InputError"}', b"null", b"\xff\xfe"],
)
def test_what_is_no_refusal_is_told_with_its_status(body):
    """Another program's answer becomes the class that the caller gave, with what it said."""
    found = error_wire.decode_error(502, body, unreadable=errors.ClusterUnavailable)
    assert type(found) is errors.ClusterUnavailable
    assert "502" in str(found)


@pytest.mark.parametrize("kind", ["annotations", "SystemExit", "NewerError", "__doc__"])
def test_a_class_that_is_not_ours_is_no_class(kind):
    """A name from the wire picks an error of the tree or none at all."""
    found = error_wire.decode_error(
        500, error_wire.encode_error(kind, "why"), unreadable=errors.ClusterUnavailable
    )
    assert type(found) is errors.RoverError
    assert str(found) == f"{kind}: why"
